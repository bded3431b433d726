"""Bytes of a workflow, campaign or federation file → text; another encoding is an error with its place."""

from __future__ import annotations

import codecs
from typing import Final

from tunefleet.errors import Fault, SpecError

# The longer mark first: that of UTF-32 begins with that of UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# What editors call Latin-1 is mostly this superset of it.
_SINGLE_BYTE: Final = "WINDOWS-1252"


def decode_file(data: bytes, filename: str) -> str:
    """Decode a file as UTF-8, with or without a byte order mark.

    Args:
        data: Its content.
        filename: Its name, for messages.

    Raises:
        SpecError: If it has another encoding or is not text.
    """
    encoding = _wide_encoding(data)
    if encoding is not None:
        fault = Fault("", f"the file is encoded in {encoding}, not in UTF-8", 1, 1, _convert(encoding))
        raise SpecError([fault], filename=filename)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError([_bad_byte(data, error.start)], filename=filename) from None
    nul = data.find(b"\0")
    if nul >= 0:
        message = f"byte {nul + 1:,} is NUL (0x00): the file is not text, or is damaged"
        fault = Fault("", message, *_position(data, nul), "remove the byte, or name a text file")
        raise SpecError([fault], filename=filename)
    return text.removeprefix("\ufeff")


def _wide_encoding(data: bytes) -> str | None:
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    # Without a mark, every second byte of Latin letters is zero.
    if data[:4:2] == b"\0\0" and data[1:4:2].isascii() and 0 not in data[1:4:2]:
        return "UTF-16BE"
    if data[1:4:2] == b"\0\0" and 0 not in data[:4:2]:
        return "UTF-16LE"
    return None


def _bad_byte(data: bytes, at: int) -> Fault:
    byte = data[at]
    character = bytes([byte]).decode(_SINGLE_BYTE, "replace")
    meant = f"; it is {character!r} in Latin-1" if character.isprintable() and character != "\ufffd" else ""
    message = f"byte {at + 1:,} is 0x{byte:02X}, which is not UTF-8{meant}"
    return Fault("", message, *_position(data, at), _convert(_SINGLE_BYTE))


def _position(data: bytes, at: int) -> tuple[int, int]:
    lines = data[:at].split(b"\n")
    return len(lines), len(lines[-1].decode("utf-8-sig", "replace")) + 1


def _convert(encoding: str) -> str:
    return f"save it as UTF-8: `iconv -f {encoding} -t UTF-8 FILE > NEW_FILE`"
