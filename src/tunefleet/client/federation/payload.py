"""Content of an update: a PEFT folder unchanged, or arrays written as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tunefleet.errors import InputError, NotFoundError
from tunefleet.federation import AdapterFile, write_tensors
from tunefleet.federation.quantize import write_int8
from tunefleet.schemas.federated import ADAPTER_FILE, CONFIG_FILE, UploadDtype

# A folder as PEFT saves it, or its tensors under the names that PEFT uses in the file.
Adapter = Path | str | Mapping[str, np.ndarray[Any, Any]]
Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]
Rounding = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]
_STORED: Final[Mapping[UploadDtype, str]] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class UpdatePayload:
    """The content of an upload.

    Args:
        config: Content of `adapter_config.json`.
        dtype: Data type of the stored weights.
        rounding: Rounding error of the 8-bit quantization.
    """

    file: Path
    config: dict[str, Any]
    dtype: UploadDtype
    rounding: Arrays = field(default_factory=dict)


def material(
    adapter: Adapter, config: Mapping[str, Any] | None, dtype: UploadDtype | None, scratch: Path, rounding: Rounding
) -> UpdatePayload:
    """Return the content to send of an adapter.

    Args:
        adapter: A folder or arrays.
        config: The adapter's config; `None` for the folder's.
        dtype: Data type to store; `None` keeps it.
        scratch: Folder for temporary files.
        rounding: Rounding error of the previous upload.

    Raises:
        InputError: If arrays come without a config.
        AdapterRefused: If the file is not a safetensors file, or its values do not fit the data type.
        NotFoundError: If the folder has no adapter.
    """
    if not isinstance(adapter, Path | str):
        if config is None:
            raise InputError(
                "Arrays need an adapter config with rank and alpha.",
                hint="Pass `config`: the content of adapter_config.json.",
            )
        given = {name: np.asarray(each, np.float32) for name, each in adapter.items()}
        return _written(given, dict(config), dtype or "fp32", scratch, rounding)
    folder = Path(adapter).expanduser()
    file = folder / ADAPTER_FILE
    if not file.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        hint = "Save it with `safe_serialization=True`." if pickled else "Name the folder that `save_pretrained` wrote."
        raise NotFoundError(f"{ADAPTER_FILE} not found in {folder}.", hint=hint)
    adapter_config = (
        dict(config) if config is not None else json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    )
    with AdapterFile(file) as opened:
        if dtype is None:
            kinds = {tensor.dtype for tensor in opened.tensors.values()}
            # With several types, the widest: it states the precision of the file.
            widest: UploadDtype = next((name for name, stored in _STORED.items() if stored in kinds), "fp32")
            return UpdatePayload(file, adapter_config, widest)
        return _written({name: opened.whole(name) for name in opened.tensors}, adapter_config, dtype, scratch, rounding)


def _written(
    arrays: Arrays, config: dict[str, Any], dtype: UploadDtype, scratch: Path, rounding: Rounding
) -> UpdatePayload:
    file = scratch / ADAPTER_FILE
    if dtype == "int8":
        return UpdatePayload(file, config, dtype, write_int8(file, arrays, rounding))
    write_tensors(file, arrays, dtype=_STORED[dtype])
    return UpdatePayload(file, config, dtype)
