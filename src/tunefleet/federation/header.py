"""The header of a safetensors file: strictly validated parsing, and writing.

The format is eight bytes with the header's length, the header as JSON, and the values without gaps. The header of an
uploaded file is untrusted, so every number in it is checked against the file. Pickles and archives are detected by
their first bytes and never opened. Source: https://github.com/huggingface/safetensors (README, "Format").
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

# Supported types with their size in bytes.
FLOATS: Final[Mapping[str, int]] = {"F32": 4, "F16": 2, "BF16": 2}
# Types of an 8-bit upload.
QUANTIZED: Final[Mapping[str, int]] = {**FLOATS, "I8": 1}
_LENGTH: Final = struct.Struct("<Q")
_MAX_BYTES: Final = 16 << 20
_MAX_TENSORS: Final = 60_000
_MAX_TOKENS: Final = 14 * _MAX_TENSORS
_MAX_NAME: Final = 1024
_MAX_AXES: Final = 8
_SAVE: Final = "Save it with model.save_pretrained(folder, safe_serialization=True)."
_MAGIC: Final = (
    (b"PK\x03\x04", "is a zip archive, as torch.save writes it, and may run code when it is loaded"),
    (b"\x1f\x8b", "is a gzip archive"),
    (b"\x80\x02", "is a pickle and may run code when it is loaded"),
    (b"\x80\x03", "is a pickle and may run code when it is loaded"),
    (b"\x80\x04", "is a pickle and may run code when it is loaded"),
    (b"\x80\x05", "is a pickle and may run code when it is loaded"),
    (b"GGUF", "is a GGUF file"),
)
PREFIX_BYTES: Final = _LENGTH.size


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    Args:
        dtype: safetensors' name of the type, such as `BF16`.
        start: Offset of its first byte in the file.
        end: Offset after its last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Parsed header: the tensors in file order, and the metadata."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def header_bytes(prefix: bytes, file_size: int) -> int:
    """Return the length of a file's header.

    Args:
        prefix: The first `PREFIX_BYTES` bytes, or all of a shorter file.

    Raises:
        AdapterRefused: If it is not a safetensors file, or its header cannot have this length.
    """
    for magic, problem in _MAGIC:
        if prefix.startswith(magic):
            raise AdapterRefused(f"Adapter {problem}; only safetensors are accepted.", hint=_SAVE)
    if len(prefix) < PREFIX_BYTES:
        raise AdapterRefused(f"The adapter has {file_size} bytes, which is too short for a safetensors file.")
    length: int = _LENGTH.unpack(prefix)[0]
    if length > file_size - PREFIX_BYTES:
        raise AdapterRefused("The adapter is not a safetensors file, or its header is truncated.", hint=_SAVE)
    if length > _MAX_BYTES:
        raise AdapterRefused(f"The adapter's header has {length:,} bytes; the limit is {_MAX_BYTES:,}.")
    return length


def parse_header(text: bytes, *, file_size: int, dtypes: Mapping[str, int] = FLOATS) -> Header:
    """Parse a header and check it against the file.

    Args:
        text: The header, without the length prefix.
        file_size: Size of the complete file in bytes.
        dtypes: Allowed types, with their size in bytes.

    Raises:
        AdapterRefused: If it is invalid, has a duplicate tensor, or tensors overlap or have gaps.
    """
    entries = strict_json(text, "The adapter's header")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise AdapterRefused("The metadata in the adapter's header are not strings.")
    if len(entries) > _MAX_TENSORS:
        raise AdapterRefused(f"The adapter has {len(entries):,} tensors; the limit is {_MAX_TENSORS:,}.")
    first = PREFIX_BYTES + len(text)
    found = [(name, _tensor(name, entry, first, dtypes)) for name, entry in entries.items()]
    found.sort(key=lambda each: (each[1].start, each[1].end))
    _without_gaps(found, first, file_size)
    return Header(dict(found), metadata)


def strict_json(text: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object from an untrusted source.

    Args:
        what: Subject of the error message.

    Raises:
        AdapterRefused: If it is not an object, has a duplicate key, or would need much more memory than its size.
    """
    # Each of these characters may cost a hundred bytes once it is parsed.
    if sum(text.count(token) for token in (b"{", b"[", b",")) > _MAX_TOKENS:
        raise AdapterRefused(f"{what} has too many elements.")
    try:
        read = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except _DuplicateKey as error:
        raise AdapterRefused(f"{what} has the duplicate key {_shown(str(error))}.") from error
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"{what} is not valid JSON.", detail=str(error)) from error
    if not isinstance(read, dict):
        raise AdapterRefused(f"{what} is not a JSON object.")
    return read


class _DuplicateKey(Exception):
    """A key is duplicate."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise _DuplicateKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return read


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _shown(name: str) -> str:
    return repr(printable(name if len(name) <= _MAX_NAME else f"{name[:80]}…"))


def _tensor(name: str, entry: Any, first: int, dtypes: Mapping[str, int]) -> TensorInfo:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise AdapterRefused(f"{_shown(name)} is not a valid tensor name.", tensor=name[:_MAX_NAME])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise AdapterRefused(f"The header has no type, shape and offsets for the tensor {_shown(name)}.", tensor=name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        known = ", ".join(dtypes)
        raise AdapterRefused(
            f"The tensor {_shown(name)} has the type {_shown(str(dtype))}; supported types: {known}.",
            hint="Save the adapter in float32 or bfloat16.",
            tensor=name,
        )
    if not _naturals(shape) or len(shape) > _MAX_AXES:
        raise AdapterRefused(f"The shape of the tensor {_shown(name)} is not a list of sizes.", tensor=name)
    if not _naturals(offsets) or len(offsets) != 2:
        raise AdapterRefused(f"The offsets of the tensor {_shown(name)} are not a first and a last byte.", tensor=name)
    start, end = offsets
    if end - start != math.prod(shape) * dtypes[dtype]:
        raise AdapterRefused(
            f"The tensor {_shown(name)} has {end - start} bytes, but its type and shape {tuple(shape)} require "
            f"{math.prod(shape) * dtypes[dtype]}.",
            tensor=name,
        )
    return TensorInfo(dtype, tuple(shape), first + start, first + end)


def _naturals(value: Any) -> bool:
    # Python's integers are unbounded: values above 2⁴⁸ cannot be file offsets, and are slow to print.
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 48 for each in value)


def _without_gaps(found: Sequence[tuple[str, TensorInfo]], first: int, file_size: int) -> None:
    at = first
    for name, tensor in found:
        if tensor.end > file_size:
            raise AdapterRefused(
                f"The tensor {_shown(name)} ends after the end of the file; the file is truncated.",
                hint="Upload it again.",
                tensor=name,
            )
        if tensor.start != at:
            kind = "overlaps the previous one" if tensor.start < at else "has a gap before it"
            raise AdapterRefused(f"The tensor {_shown(name)} {kind}.", tensor=name)
        at = tensor.end
    if at != file_size:
        raise AdapterRefused(f"The adapter has {file_size - at} bytes that belong to no tensor.")


def write_header(
    tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, TensorInfo]]:
    """Create the header of a file.

    Args:
        tensors: Type and shape of each tensor, in the order of the values.
        metadata: Free-form metadata.

    Returns:
        The header's bytes, which precede the values, and the offsets of each tensor.
    """
    at = 0
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * QUANTIZED[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    # Padded like safetensors itself does, so that the values are aligned for memory mapping.
    text += b" " * (-len(text) % 8)
    first = PREFIX_BYTES + len(text)
    places = {
        name: TensorInfo(tensors[name][0], tuple(tensors[name][1]), first + start, first + end)
        for name, (start, end) in ((name, entries[name]["data_offsets"]) for name in tensors)
    }
    return _LENGTH.pack(len(text)) + text, places
