"""8-bit uploads: a quarter of float32's size; their rounding error is added to the next upload.

Each group of 256 consecutive values shares a scale, its largest value is ±127, and zero stays zero. The worker keeps
the rounding error and adds it to its next upload (error feedback), so that nothing is lost over the rounds. A file has
`NAME.int8` with the tensor's shape, `NAME.scale` with one float32 per 256 values, and the metadata
`tunefleet.upload_dtype: int8`. The server unpacks it before validation; nothing is averaged in 8 bits. Source: error
feedback, Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847.

Error feedback: an update that is rejected, or replaced by another one of its worker, contributed to no version, so its
rounding error is dropped. The counted updates and the residual add up to what was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.floats import Array
from tunefleet.federation.header import QUANTIZED, TensorInfo
from tunefleet.federation.safetensors_writer import METADATA, AdapterWriter

# Metadata key of the packing.
UPLOAD_DTYPE: Final = "tunefleet.upload_dtype"
# Values per scale.
GROUP: Final = 256
_MOST: Final = 127
_VALUES: Final = ".int8"
_SCALE: Final = ".scale"
_BLOCK: Final = 256 * GROUP


def write_int8(
    path: Path, values: Mapping[str, Array], feedback: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Write an adapter's tensors in 8 bits.

    Args:
        path: Output file; replaced if it exists.
        values: float32 arrays by name.
        feedback: Rounding errors that the previous call returned; they are added before rounding. Missing tensors and
            tensors of another shape start without.

    Returns:
        The rounding errors by name; pass them to the next call.

    Raises:
        AdapterRefused: If a value is not finite.
    """
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, each in values.items():
        shapes[name + _VALUES] = ("I8", each.shape)
        shapes[name + _SCALE] = ("F32", (_groups(each.size),))
    lost: dict[str, Array] = {}
    with AdapterWriter(path, shapes, {**METADATA, UPLOAD_DTYPE: "int8"}) as written:
        for name, each in values.items():
            before = None if feedback is None else feedback.get(name)
            wanted = each if before is None or before.shape != each.shape else each + before
            small, scales = packed(wanted)
            written.write(name + _SCALE, 0, scales)
            written.raw(name + _VALUES, 0, small)
            lost[name] = wanted - unpacked(small, scales).reshape(each.shape)
    return lost


def _groups(size: int) -> int:
    return -(-size // GROUP)


def packed(values: Array) -> tuple[npt.NDArray[np.int8], Array]:
    """Quantize values to 8 bits.

    Args:
        values: Finite float32.

    Returns:
        The flattened integers, and one scale per `GROUP` of them.

    Raises:
        AdapterRefused: If a value is not finite.
    """
    if not np.isfinite(values).all():
        raise AdapterRefused("The adapter has values that are not finite.")
    padded = np.zeros(_groups(values.size) * GROUP, np.float32)
    padded[: values.size] = values.reshape(-1)
    groups = padded.reshape(-1, GROUP)
    scales: Array = np.abs(groups).max(axis=1, initial=0.0) / np.float32(_MOST)
    # Subnormal scales have no finite reciprocal: treat such a group as zero.
    scales[scales < np.finfo(np.float32).tiny] = 0.0
    safe = np.where(scales > 0, scales, np.float32(1.0))
    small = np.clip(np.rint(groups / safe[:, None]), -_MOST, _MOST) * (scales > 0)[:, None]
    return small.astype(np.int8).reshape(-1)[: values.size], scales


def unpacked(small: npt.NDArray[np.int8], scales: Array) -> Array:
    """Dequantize values, flattened, to float32.

    Args:
        small: The integers, starting at a group boundary.
        scales: The scale of each group.
    """
    spread = np.repeat(scales, GROUP)[: small.size]
    out: Array = small.reshape(-1).astype(np.float32)
    out *= spread
    return out


def unpack(path: Path, into: Path, *, dtype: str = "F32") -> None:
    """Convert an 8-bit upload to a plain file, in blocks.

    Args:
        into: Output file; replaced if it exists.
        dtype: Output type `F32`, `BF16` or `F16`.

    Raises:
        AdapterRefused: If it is invalid, or its values and scales do not match.
    """
    with AdapterFile(path, dtypes=QUANTIZED) as file:
        pairs = _pairs(file)
        with AdapterWriter(into, {name: (dtype, small.shape) for name, (small, _) in pairs.items()}) as written:
            for name, (small, scales) in pairs.items():
                _unpack(name, file, small, scales, written)


def _pairs(file: AdapterFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    if file.metadata.get(UPLOAD_DTYPE) != "int8":
        raise AdapterRefused(f"The upload's header lacks {UPLOAD_DTYPE}: int8.")
    found: dict[str, tuple[TensorInfo, TensorInfo]] = {}
    for name, tensor in file.tensors.items():
        if name.endswith(_SCALE) and tensor.dtype == "F32":
            continue
        scales = file.tensors.get(name.removesuffix(_VALUES) + _SCALE)
        if not name.endswith(_VALUES) or tensor.dtype != "I8":
            raise AdapterRefused(f"The tensor {name!r} does not belong to an 8-bit upload.", tensor=name)
        if scales is None or scales.dtype != "F32" or scales.shape != (_groups(tensor.size),):
            raise AdapterRefused(
                f"The tensor {name!r} does not have one scale per {GROUP} values.", hint="Pack it again.", tensor=name
            )
        found[name.removesuffix(_VALUES)] = (tensor, scales)
    if 2 * len(found) != len(file.tensors):
        lone = next(name for name in file.tensors if name.endswith(_SCALE) and name[: -len(_SCALE)] not in found)
        raise AdapterRefused(f"The tensor {lone!r} is a scale without values.", tensor=lone)
    return found


def _unpack(name: str, file: AdapterFile, small: TensorInfo, scales: TensorInfo, written: AdapterWriter) -> None:
    for start in range(0, small.size, _BLOCK):
        count = min(_BLOCK, small.size - start)
        values = np.empty(count, np.int8)
        file.stored(small, start, values)
        group = np.empty(_groups(count), np.float32)
        file.read(scales, start // GROUP, group)
        if not np.isfinite(group).all() or group.min(initial=0.0) < 0:
            raise AdapterRefused(f"The tensor {name + _SCALE!r} has an invalid scale.", tensor=name + _SCALE)
        written.write(name, start, unpacked(values, group))


@dataclass(frozen=True, slots=True)
class Feedback:
    """The accumulated rounding error.

    Args:
        residual: By tensor name; added to the next upload before rounding.
        update: Id of the last update that counts or will count; `None` if unknown.
        own: The part of the residual that this update alone caused.
    """

    residual: Mapping[str, Array] = field(default_factory=dict)
    update: int | None = None
    own: Mapping[str, Array] = field(default_factory=dict)

    def after(self, left: Mapping[str, Array], update: int, replaces: int | None) -> Feedback:
        """Return the residual after another update counts.

        Args:
            left: Result of `write_int8` for it, with this residual as `feedback`.
            replaces: Id of the update that it replaced.
        """
        own = _less(left, self.residual)
        void = self.own if replaces is not None and replaces == self.update else {}
        return Feedback(_less(left, void), update, own)


def _less(values: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
    """Return differences; a tensor that is missing in the others, or has another shape there, stays unchanged."""
    found: dict[str, Array] = {}
    for name, each in values.items():
        other = others.get(name)
        found[name] = each if other is None or other.shape != each.shape else each - other
    return found
