"""Validation of an uploaded adapter: whether it fits the federation, and whether it was trained at all.

All of it blocks and imports NumPy: import it in the thread that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from tunefleet.errors import AdapterRefused
from tunefleet.federation import AdapterFile, read_config
from tunefleet.federation.contract import Contract, check, check_asked, contract_of
from tunefleet.federation.floats import holds, narrow, widen
from tunefleet.federation.header import TensorInfo
from tunefleet.orchestrator.federation.updates.archive_layout import (
    RECIPE_FOLDER,
    ArchiveFiles,
    find_adapter,
    find_recipes_adapter,
)
from tunefleet.schemas.federated import UploadDtype
from tunefleet.spec.options.federation_options import FederationSpec

_FIX: Final = 'model.load_adapter(extract_dir, adapter_name="default", is_trainable=True)'
UNTRAINED: Final = (
    f"Not counted: {RECIPE_FOLDER}/ is an untrained copy of a version, and the adapter at the root is stale. The "
    "optimizer does not train the parameters of an adapter that is loaded under a new name. Load each version over the "
    f"adapter that trains instead: {_FIX}."
)
TRAINED: Final = (
    f"The adapter in {RECIPE_FOLDER}/ counts, not the stale one at the root. Load each version over the adapter that "
    f"trains, so that there is only one: {_FIX}."
)
_NAMES: Final[dict[tuple[str, ...], UploadDtype]] = {("BF16",): "bf16", ("F16",): "fp16"}
# Values that are compared at a time, to bound memory.
_BLOCK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Examined:
    """A valid adapter."""

    weights: Path
    config: str
    contract: str
    values_digest: str
    norm: float
    dtype: UploadDtype
    size_bytes: int
    doubt: str | None = None
    remark: str | None = None


def examine(
    weights: Path, config: bytes, spec: FederationSpec, contract: str | None, *, sha256: str | None = None
) -> Examined:
    """Validate an adapter, including all of its values.

    Args:
        contract: The federation's contract (JSON); None before the first update.
    """
    adapter_config = read_config(config)
    check_asked(spec, adapter_config)
    with AdapterFile(weights) as file:
        own = contract_of(adapter_config, file)
        wanted = own if contract is None else Contract.from_json(contract)
        checked = check(wanted, adapter_config, file, mixed_ranks=spec.mixed_ranks, sha256=sha256)
    return Examined(
        weights=weights,
        config=config.decode(),
        contract=own.to_json(),
        values_digest=checked.digest,
        norm=checked.norm,
        dtype=_NAMES.get(checked.dtypes, "fp32"),
        size_bytes=checked.size_bytes,
    )


def examine_archive(
    folder: Path, spec: FederationSpec, contract: str | None, versions: Iterable[Path]
) -> tuple[Examined, ArchiveFiles]:
    """Validate the adapter of an unpacked archive.

    Args:
        contract: The federation's contract (JSON); None before the first update.
    """
    found, recipes = find_adapter(folder), find_recipes_adapter(folder)
    if recipes is None:
        return examine(found.weights, found.config, spec, contract), found
    if any(untrained(recipes.weights, version) for version in versions):
        examined = examine(found.weights, found.config, spec, contract)
        return replace(examined, doubt=UNTRAINED), found
    try:
        examined = examine(recipes.weights, recipes.config, spec, contract)
    except AdapterRefused as error:
        raise AdapterRefused(
            f"{RECIPE_FOLDER}/: {error.message}", hint=error.hint, detail=error.detail, tensor=error.tensor
        ) from error
    return replace(examined, remark=TRAINED), found


def untrained(sent: Path, given: Path) -> bool:
    """Whether a file has the same values as another one, exactly or rounded to its own dtypes.

    Raises:
        AdapterRefused: If one of them cannot be read.
    """
    with AdapterFile(sent) as mine, AdapterFile(given) as theirs:
        shapes = {name: tensor.shape for name, tensor in mine.tensors.items()}
        if shapes != {name: tensor.shape for name, tensor in theirs.tensors.items()}:
            return False
        return all(_same(mine, theirs, mine.tensors[name], theirs.tensors[name]) for name in shapes)


def _same(own: AdapterFile, other: AdapterFile, sent: TensorInfo, given: TensorInfo) -> bool:
    for start in range(0, sent.size, _BLOCK):
        count = min(_BLOCK, sent.size - start)
        left, right = np.empty(count, np.float32), np.empty(count, np.float32)
        own.read(sent, start, left)
        other.read(given, start, right)
        if sent.dtype != given.dtype and holds(right, sent.dtype):
            widen(narrow(right, sent.dtype), sent.dtype, right)
        if not np.array_equal(left, right):
            return False
    return True
