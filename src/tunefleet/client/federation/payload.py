"""What an update is made of: a folder of PEFT's as it is, or arrays that are written as safetensors."""

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

# A folder as PEFT saves it, or its tensors by the names that PEFT gives them in a file.
Adapter = Path | str | Mapping[str, np.ndarray[Any, Any]]
Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]
Rounding = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]
_STORED: Final[Mapping[UploadDtype, str]] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class Material:
    """What is sent.

    Args:
        config: What its `adapter_config.json` says.
        dtype: How the weights are written.
        rounding: What 8 bits have rounded away.
    """

    file: Path
    config: dict[str, Any]
    dtype: UploadDtype
    rounding: Arrays = field(default_factory=dict)


def material(
    adapter: Adapter, config: Mapping[str, Any] | None, dtype: UploadDtype | None, scratch: Path, rounding: Rounding
) -> Material:
    """Return what is to be sent of an adapter.

    Args:
        adapter: A folder or arrays.
        config: The adapter's config; None takes the folder's.
        dtype: How to write the weights; None leaves them as they are.
        scratch: A folder for what is written.
        rounding: What the upload before has rounded away.

    Raises:
        InputError: If arrays come without a config.
        AdapterRefused: If the file is no safetensors file, or its numbers cannot be written so.
        NotFoundError: If there is none in the folder.
    """
    if not isinstance(adapter, Path | str):
        if config is None:
            raise InputError(
                "Arrays say nothing of rank and alpha.", hint="Give `config`: what adapter_config.json has."
            )
        given = {name: np.asarray(each, np.float32) for name, each in adapter.items()}
        return _written(given, dict(config), dtype or "fp32", scratch, rounding)
    folder = Path(adapter).expanduser()
    file = folder / ADAPTER_FILE
    if not file.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        hint = "Save it with `safe_serialization=True`." if pickled else "Name the folder that `save_pretrained` wrote."
        raise NotFoundError(f"There is no {ADAPTER_FILE} in {folder}.", hint=hint)
    said = dict(config) if config is not None else json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    with AdapterFile(file) as opened:
        if dtype is None:
            kinds = {tensor.dtype for tensor in opened.tensors.values()}
            # Of several, the widest: what it says is how exact the file is.
            widest: UploadDtype = next((name for name, stored in _STORED.items() if stored in kinds), "fp32")
            return Material(file, said, widest)
        return _written({name: opened.whole(name) for name in opened.tensors}, said, dtype, scratch, rounding)


def _written(arrays: Arrays, config: dict[str, Any], dtype: UploadDtype, scratch: Path, rounding: Rounding) -> Material:
    file = scratch / ADAPTER_FILE
    if dtype == "int8":
        return Material(file, config, dtype, write_int8(file, arrays, rounding))
    write_tensors(file, arrays, dtype=_STORED[dtype])
    return Material(file, config, dtype)
