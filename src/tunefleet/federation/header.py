"""The header of a safetensors file: read with suspicion, written plainly.

The format is eight bytes with the header's length, the header as JSON, and the values without gaps. Whoever uploads
a file writes its header, so every number in it is checked against the file before anything is believed. Pickles and
archives are known by their first bytes and never opened.

Source: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.errors import AdapterRefused, printable

# Types that are averaged, with their size in bytes.
FLOATS: Final[Mapping[str, int]] = {"F32": 4, "F16": 2, "BF16": 2}
# Types of an upload in 8 bits.
QUANTIZED: Final[Mapping[str, int]] = {**FLOATS, "I8": 1}
_LENGTH: Final = struct.Struct("<Q")
_MAX_BYTES: Final = 16 << 20
_MAX_TENSORS: Final = 60_000
_MAX_TOKENS: Final = 14 * _MAX_TENSORS
_MAX_NAME: Final = 1024
_MAX_AXES: Final = 8
_SAVE: Final = "Save it with model.save_pretrained(folder, safe_serialization=True)."
_MAGIC: Final = (
    (b"PK\x03\x04", "is a zip archive, as torch.save writes it, and may run code when it is opened"),
    (b"\x1f\x8b", "is a gzip archive"),
    (b"\x80\x02", "is a pickle and may run code when it is opened"),
    (b"\x80\x03", "is a pickle and may run code when it is opened"),
    (b"\x80\x04", "is a pickle and may run code when it is opened"),
    (b"\x80\x05", "is a pickle and may run code when it is opened"),
    (b"GGUF", "is a GGUF file"),
)
PREFIX_BYTES: Final = _LENGTH.size


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    Args:
        dtype: As safetensors writes it, such as `BF16`.
        start: First byte of its values, counted from the file's beginning.
        end: The byte behind its values.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a file says: the tensors in the order of their values, and free words."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def header_bytes(prefix: bytes, file_size: int) -> int:
    """Return the length of the header that follows a file's first bytes.

    Args:
        prefix: The first `PREFIX_BYTES` bytes, or all of a shorter file.

    Raises:
        AdapterRefused: If it is no safetensors file, or its header cannot be that long.
    """
    for magic, words in _MAGIC:
        if prefix.startswith(magic):
            raise AdapterRefused(f"The adapter {words}; only safetensors are accepted.", hint=_SAVE)
    if len(prefix) < PREFIX_BYTES:
        raise AdapterRefused(f"The adapter has {file_size} bytes, which is too short for a safetensors file.")
    length: int = _LENGTH.unpack(prefix)[0]
    if length > file_size - PREFIX_BYTES:
        raise AdapterRefused("The adapter is no safetensors file, or it is cut off in its header.", hint=_SAVE)
    if length > _MAX_BYTES:
        raise AdapterRefused(f"The adapter's header has {length:,} bytes; at most {_MAX_BYTES:,} are read.")
    return length


def parse_header(text: bytes, *, file_size: int, dtypes: Mapping[str, int] = FLOATS) -> Header:
    """Read a header and hold it against the file.

    Args:
        text: The header, without the length before it.
        file_size: Size of the whole file in bytes.
        dtypes: The types that may occur, with their size in bytes.

    Raises:
        AdapterRefused: If it is damaged, names a tensor twice, or a tensor's place is not its own.
    """
    words = strict_json(text, "The adapter's header")
    metadata = words.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise AdapterRefused("The metadata in the adapter's header are not texts.")
    if len(words) > _MAX_TENSORS:
        raise AdapterRefused(f"The adapter has {len(words):,} tensors; at most {_MAX_TENSORS:,} are read.")
    first = PREFIX_BYTES + len(text)
    found = [(name, _tensor(name, entry, first, dtypes)) for name, entry in words.items()]
    found.sort(key=lambda each: (each[1].start, each[1].end))
    _without_gaps(found, first, file_size)
    return Header(dict(found), metadata)


def strict_json(text: bytes, what: str) -> dict[str, Any]:
    """Read an object of JSON that somebody else wrote.

    Args:
        what: What it is, for the refusal: the beginning of a sentence.

    Raises:
        AdapterRefused: If it is not one object, has a key twice, or would need much more memory than it has bytes.
    """
    # Each of these characters may cost a hundred bytes once it is read.
    if sum(text.count(token) for token in (b"{", b"[", b",")) > _MAX_TOKENS:
        raise AdapterRefused(f"{what} has too many parts to be read.")
    try:
        read = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except _Twice as error:
        raise AdapterRefused(f"{what} has the key {_shown(str(error))} twice.") from error
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"{what} is not JSON that can be read.", detail=str(error)) from error
    if not isinstance(read, dict):
        raise AdapterRefused(f"{what} is not an object of JSON.")
    return read


class _Twice(Exception):
    """A key is there twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise _Twice(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return read


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _shown(name: str) -> str:
    return repr(printable(name if len(name) <= _MAX_NAME else f"{name[:80]}…"))


def _tensor(name: str, entry: Any, first: int, dtypes: Mapping[str, int]) -> TensorInfo:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise AdapterRefused(f"{_shown(name)} is not the name of a tensor.", tensor=name[:_MAX_NAME])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise AdapterRefused(
            f"The header does not say type, shape and place of the tensor {_shown(name)}.", tensor=name
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        known = ", ".join(dtypes)
        raise AdapterRefused(
            f"The tensor {_shown(name)} has the type {_shown(str(dtype))}; accepted are {known}.",
            hint="Save the adapter in float32 or bfloat16.",
            tensor=name,
        )
    if not _naturals(shape) or len(shape) > _MAX_AXES:
        raise AdapterRefused(f"The shape of the tensor {_shown(name)} is not a list of sizes.", tensor=name)
    if not _naturals(offsets) or len(offsets) != 2:
        raise AdapterRefused(f"The place of the tensor {_shown(name)} is not a first and a last byte.", tensor=name)
    start, end = offsets
    if end - start != math.prod(shape) * dtypes[dtype]:
        raise AdapterRefused(
            f"The tensor {_shown(name)} has {end - start} bytes, and its type and shape {tuple(shape)} need "
            f"{math.prod(shape) * dtypes[dtype]}.",
            tensor=name,
        )
    return TensorInfo(dtype, tuple(shape), first + start, first + end)


def _naturals(value: Any) -> bool:
    # Python's whole numbers have no end; what is beyond 2⁴⁸ cannot be a place in a file, and is slow to print.
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 48 for each in value)


def _without_gaps(found: Sequence[tuple[str, TensorInfo]], first: int, file_size: int) -> None:
    at = first
    for name, tensor in found:
        if tensor.end > file_size:
            raise AdapterRefused(
                f"The tensor {_shown(name)} would end behind the file's end; the file is cut off.",
                hint="Upload it again.",
                tensor=name,
            )
        if tensor.start != at:
            kind = "overlaps the one before it" if tensor.start < at else "has a gap before it"
            raise AdapterRefused(f"The tensor {_shown(name)} {kind}.", tensor=name)
        at = tensor.end
    if at != file_size:
        raise AdapterRefused(f"The adapter has {file_size - at} bytes that belong to no tensor.")


def write_header(
    tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, TensorInfo]]:
    """Write the beginning of a file.

    Args:
        tensors: Type and shape of each tensor, in the order in which the values will stand.
        metadata: Free words.

    Returns:
        The bytes, values to follow, and where each tensor's values belong.
    """
    at = 0
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * QUANTIZED[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    # As safetensors itself does it, so that values stand where a reader may map them.
    text += b" " * (-len(text) % 8)
    first = PREFIX_BYTES + len(text)
    places = {
        name: TensorInfo(tensors[name][0], tuple(tensors[name][1]), first + start, first + end)
        for name, (start, end) in ((name, entries[name]["data_offsets"]) for name in tensors)
    }
    return _LENGTH.pack(len(text)) + text, places
