"""An adapter on disk: its config, and its tensors, read in blocks.

A file is read with `preadv`: only the current block is in memory, whatever the file's size, and nothing in it is ever
executed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from tunefleet.errors import AdapterRefused, printable
from tunefleet.federation.floats import STORED, Array, widen
from tunefleet.federation.header import (
    FLOATS,
    PREFIX_BYTES,
    Header,
    TensorInfo,
    header_bytes,
    parse_header,
    strict_json,
)
from tunefleet.federation.variants import CARRIED, check_pattern, check_variant, matching

TENSORS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"
_MAX_CONFIG_BYTES: Final = 1 << 20
_MAX_RANK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter's `adapter_config.json`.

    Args:
        base_model: Name or path of the base model.
        rank: Rank of the layers that `rank_pattern` does not match.
        alpha: Alpha of the layers that `alpha_pattern` does not match.
        use_rslora: Whether the scale is alpha / √rank instead of alpha / rank.
        targets: Names of the layers with an adapter, or a pattern.
        modules_to_save: Layers that are fully trained.
        rank_pattern: Ranks of single modules.
        alpha_pattern: Alphas of single modules.
        raw: The complete config, as PEFT saved it.
    """

    base_model: str | None
    rank: int
    alpha: float
    use_rslora: bool
    targets: frozenset[str] | str
    modules_to_save: tuple[str, ...] = ()
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        name = matching(self.rank_pattern, module)
        return self.rank if name is None else self.rank_pattern[name]

    def scale_of(self, module: str, rank: int) -> float:
        """Return the scale of a module's B · A.

        Args:
            module: Name of the module, without PEFT's prefix.
        """
        name = matching(self.alpha_pattern, module)
        alpha = self.alpha if name is None else self.alpha_pattern[name]
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def resized(self, rank: int) -> AdapterConfig:
        """Return the config of an adapter with another rank in all layers, and the same scale."""
        scale = self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)
        alpha = scale * (math.sqrt(rank) if self.use_rslora else rank)
        alpha = round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha
        changed: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "rank_pattern": {}, "alpha_pattern": {}}
        return config_of({**self.raw, **changed})

    def unscaled(self, rank: int, *, factors_only: bool = False) -> AdapterConfig:
        """Return the config of an adapter with another rank and scale 1.

        Args:
            rank: Rank of all layers.
            factors_only: Whether it has no fully trained layers.
        """
        changed: dict[str, Any] = {"r": rank, "lora_alpha": rank, "rank_pattern": {}, "alpha_pattern": {}}
        changed |= {"use_rslora": False, **({"modules_to_save": None} if factors_only else {})}
        return config_of({**self.raw, **changed})

    def to_json(self) -> bytes:
        """Return the config in PEFT's format, without keys that do not concern the tensors."""
        kept = {key: self.raw[key] for key in CARRIED if key in self.raw}
        return json.dumps(kept, indent=2, ensure_ascii=False).encode() + b"\n"


def read_config(text: bytes) -> AdapterConfig:
    """Parse an `adapter_config.json`.

    Raises:
        AdapterRefused: If it is invalid, not LoRA, or an unsupported variant.
    """
    if len(text) > _MAX_CONFIG_BYTES:
        raise AdapterRefused(f"{CONFIG} has {len(text):,} bytes; the limit is {_MAX_CONFIG_BYTES:,}.")
    return config_of(strict_json(text, CONFIG))


def config_of(raw: Mapping[str, Any]) -> AdapterConfig:
    """Validate a parsed config.

    Raises:
        AdapterRefused: As `read_config`.
    """
    check_variant(raw)
    base = raw.get("base_model_name_or_path")
    if base is not None and not isinstance(base, str):
        raise AdapterRefused(f"base_model_name_or_path in {CONFIG} is not a string.")
    return AdapterConfig(
        base_model=base or None,
        rank=_rank(raw.get("r"), "r"),
        alpha=_alpha(raw.get("lora_alpha"), "lora_alpha"),
        use_rslora=_flag(raw.get("use_rslora"), "use_rslora"),
        targets=_targets(raw.get("target_modules")),
        modules_to_save=_names(raw.get("modules_to_save"), "modules_to_save"),
        rank_pattern={name: _rank(rank, f"rank_pattern {name}") for name, rank in _pattern(raw, "rank_pattern")},
        alpha_pattern={name: _alpha(alpha, f"alpha_pattern {name}") for name, alpha in _pattern(raw, "alpha_pattern")},
        raw=dict(raw),
    )


def _rank(value: Any, key: str) -> int:
    if type(value) is not int or not 1 <= value <= _MAX_RANK:
        raise AdapterRefused(f"{key} in {CONFIG} is {_shown(value)}; it must be an integer from 1 to {_MAX_RANK}.")
    return value


def _flag(value: Any, key: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise AdapterRefused(f"{key} in {CONFIG} is {_shown(value)}; it must be true or false.")
    return bool(value)


def _alpha(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise AdapterRefused(f"{key} in {CONFIG} is {_shown(value)}; it must be a number above 0.")
    return float(value)


def _targets(value: Any) -> frozenset[str] | str:
    return value if isinstance(value, str) else frozenset(_names(value, "target_modules"))


def _names(value: Any, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise AdapterRefused(f"{key} in {CONFIG} is not a list of names.")
    return tuple(sorted(set(value)))


def _pattern(raw: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    names = raw.get(key) or {}
    if not isinstance(names, dict):
        raise AdapterRefused(f"{key} in {CONFIG} is not a mapping.")
    check_pattern(key, names)
    yield from names.items()


def _shown(value: Any) -> str:
    return repr(printable(str(value)[:200]))


class AdapterFile:
    """A safetensors file opened for reading.

    Thread-safe. Use it as a context manager.

    Args:
        dtypes: Allowed types, with their size in bytes.

    Attributes:
        tensors: Type, shape and offsets of each tensor.
        metadata: The header's free-form metadata.

    Raises:
        AdapterRefused: If it is not a safetensors file, or its header does not match the file.
    """

    def __init__(self, path: Path, *, dtypes: Mapping[str, int] = FLOATS) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size_bytes = os.fstat(self._fd).st_size
            header = self._header(dtypes)
        except BaseException:
            os.close(self._fd)
            raise
        self.tensors = header.tensors
        self.metadata = header.metadata

    def _header(self, dtypes: Mapping[str, int]) -> Header:
        length = header_bytes(os.pread(self._fd, PREFIX_BYTES, 0), self.size_bytes)
        text = os.pread(self._fd, length, PREFIX_BYTES)
        return parse_header(text, file_size=self.size_bytes, dtypes=dtypes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def begins_with(self, text: bytes) -> bool:
        """Return whether the file starts with these bytes."""
        return os.pread(self._fd, len(text), 0) == text

    def stored(self, tensor: TensorInfo, start: int, out: npt.NDArray[Any]) -> None:
        """Read values in the stored type.

        Args:
            start: Index of the first value in the flattened tensor.
            out: Contiguous output array of the stored type; its size is the number of values.

        Raises:
            AdapterRefused: If the file is truncated.
        """
        if not out.size:
            return
        view = out.data.cast("B")
        at = tensor.start + start * out.itemsize
        while view:
            # Not `mmap`: a file that is truncated while it is mapped would end the process with SIGBUS.
            count = os.preadv(self._fd, [view], at)
            if count <= 0:
                raise AdapterRefused(f"{self.path.name} is truncated.", hint="Upload it again.")
            view, at = view[count:], at + count

    def read(self, tensor: TensorInfo, start: int, out: Array) -> None:
        """Read values as float32.

        Args:
            tensor: A tensor of one of the types in `FLOATS`.
            start: Index of the first value in the flattened tensor.
            out: Contiguous float32 output array; its size is the number of values.

        Raises:
            AdapterRefused: If the file is truncated.
        """
        if tensor.dtype == "F32":
            self.stored(tensor, start, out)
            return
        raw = np.empty(out.size, STORED[tensor.dtype])
        self.stored(tensor, start, raw)
        widen(raw, tensor.dtype, out.reshape(-1))

    def columns(self, tensor: TensorInfo, start: int, out: Array) -> None:
        """Read columns of a matrix as float32.

        Args:
            start: First column.
            out: Output array with all rows and the wanted number of columns; rows are contiguous.

        Raises:
            AdapterRefused: If the file is truncated.
        """
        rows, width = tensor.shape
        if out.shape[1] == width and out.flags.c_contiguous:
            self.read(tensor, 0, out)
            return
        for row in range(rows):
            self.read(tensor, row * width + start, out[row])

    def whole(self, name: str) -> Array:
        """Return all values of a tensor as float32."""
        tensor = self.tensors[name]
        out = np.empty(tensor.shape, np.float32)
        self.read(tensor, 0, out)
        return out
