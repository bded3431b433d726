"""Uploads in 8 bits: a quarter of float32, half of bfloat16.

256 values that stand together share a scale, the largest of them is ±127, and zero stays zero. What rounding takes
away is kept by the worker and added to its next upload (error feedback), so that over the rounds nothing is lost.

A file has `NAME.int8` with the tensor's shape and `NAME.scale` with a float32 for each 256 values, and the word
`tunefleet.upload_dtype: int8` in its header. The server unpacks it before it is checked; nothing averages in 8 bits.

Source: error feedback, Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.floats import Array
from tunefleet.federation.header import QUANTIZED, TensorInfo
from tunefleet.federation.safetensors_writer import METADATA, AdapterWriter

# The word in the header that says how the values are packed.
UPLOAD_DTYPE: Final = "tunefleet.upload_dtype"
# Values that share a scale.
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
        path: The file; an older one is replaced.
        values: float32 by name.
        feedback: What the last call returned; it is added before rounding. A tensor that it lacks, or has in another
            shape, begins without.

    Returns:
        What rounding took away, by name; keep it for the next upload.

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
    """Round values to 8 bits.

    Args:
        values: Finite float32.

    Returns:
        As many small integers, flattened, and a scale for each `GROUP` of them.

    Raises:
        AdapterRefused: If a value is not finite.
    """
    if not np.isfinite(values).all():
        raise AdapterRefused("An adapter with values that are not finite cannot be packed.")
    padded = np.zeros(_groups(values.size) * GROUP, np.float32)
    padded[: values.size] = values.reshape(-1)
    groups = padded.reshape(-1, GROUP)
    scales: Array = np.abs(groups).max(axis=1, initial=0.0) / np.float32(_MOST)
    # The smallest numbers have no reciprocal; a group of them is as good as zero.
    scales[scales < np.finfo(np.float32).tiny] = 0.0
    safe = np.where(scales > 0, scales, np.float32(1.0))
    small = np.clip(np.rint(groups / safe[:, None]), -_MOST, _MOST) * (scales > 0)[:, None]
    return small.astype(np.int8).reshape(-1)[: values.size], scales


def unpacked(small: npt.NDArray[np.int8], scales: Array) -> Array:
    """Return the float32 that 8 bits stand for, flattened.

    Args:
        small: The integers; they begin at the start of a group.
        scales: The scale of each group.
    """
    spread = np.repeat(scales, GROUP)[: small.size]
    out: Array = small.reshape(-1).astype(np.float32)
    out *= spread
    return out


def unpack(path: Path, into: Path, *, dtype: str = "F32") -> None:
    """Turn an upload in 8 bits into a plain one, block by block.

    Args:
        into: The plain file; an older one is replaced.
        dtype: `F32`, `BF16` or `F16` of the plain file.

    Raises:
        AdapterRefused: If it is damaged, or its values and scales do not fit each other.
    """
    with AdapterFile(path, dtypes=QUANTIZED) as file:
        pairs = _pairs(file)
        with AdapterWriter(into, {name: (dtype, small.shape) for name, (small, _) in pairs.items()}) as written:
            for name, (small, scales) in pairs.items():
                _unpack(name, file, small, scales, written)


def _pairs(file: AdapterFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    if file.metadata.get(UPLOAD_DTYPE) != "int8":
        raise AdapterRefused(f"The upload's header does not say {UPLOAD_DTYPE}: int8.")
    found: dict[str, tuple[TensorInfo, TensorInfo]] = {}
    for name, tensor in file.tensors.items():
        if name.endswith(_SCALE) and tensor.dtype == "F32":
            continue
        scales = file.tensors.get(name.removesuffix(_VALUES) + _SCALE)
        if not name.endswith(_VALUES) or tensor.dtype != "I8":
            raise AdapterRefused(f"The tensor {name!r} is not one of an upload in 8 bits.", tensor=name)
        if scales is None or scales.dtype != "F32" or scales.shape != (_groups(tensor.size),):
            raise AdapterRefused(
                f"The tensor {name!r} has no scale for each {GROUP} of its values.", hint="Pack it again.", tensor=name
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
            raise AdapterRefused(f"The tensor {name + _SCALE!r} has a scale that is no size.", tensor=name + _SCALE)
        written.write(name, start, unpacked(values, group))
