"""Changes bytes at random, as a stranger with no plan and some knowledge of the formats would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

TOKENS: Final = (
    b"\x00", b"\xff", b"\n", b"\r\n", b"\\ud800", b"\xed\xa0\x80", b"null", b"true", b"1e999", b"-1", b"9" * 25,
    b"9" * 5000, b"0.0", b"NaN", b"[]", b"{}", b'""', b"[" * 300, b'{"a":' * 300, b"&a [*a]", b"*a", b"<<: *a",
    b"!!python/object:x", b"../", b"/etc/passwd", b"..\\", b"%2e%2e", b"%00", b"\x1b[2J", b"PK\x03\x04",
    b"\x1f\x8b\x08\x00", b"ustar\x0000", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n",
    b"Host: evil\r\n", b"${secret:A}", b"${a.b}", b"? ", b": ", b"- ", b"|\n", b">-\n", b"---\n", b"...\n",
    b"%YAML 1.2\n", b"\t", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\x85",
)  # fmt: skip
_MOST: Final = 200_000


def mutated(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Return bytes made of those of the corpus.

    Args:
        data: What is changed.
        others: What parts are taken from.
        draw: Where chance comes from.
    """
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5, 9))):
        draw.choice(_WAYS)(made, others, draw)
    return bytes(made[:_MOST])


def _at(made: bytearray, draw: random.Random) -> int:
    return draw.randint(0, len(made))


def _flip(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    if made:
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)


def _set(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    if made:
        made[draw.randrange(len(made))] = draw.choice((0, 1, 0x20, 0x22, 0x2F, 0x7F, 0x80, 0xFF, draw.randrange(256)))


def _cut(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    start = _at(made, draw)
    del made[start : start + draw.choice((1, 2, 8, 64, 100_000))]


def _repeat(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    start = _at(made, draw)
    piece = made[start : start + draw.choice((1, 8, 64, 512))]
    made[start:start] = piece * draw.choice((1, 2, 20))


def _insert(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    start = _at(made, draw)
    made[start:start] = draw.choice(TOKENS)


def _splice(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    other = draw.choice(others)
    start = draw.randint(0, len(other))
    where = _at(made, draw)
    made[where : where + draw.choice((0, 8, 100_000))] = other[start : start + draw.choice((8, 64, 512, 100_000))]


def _word(made: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    """Put something else in the place of a whole value: between two signs that end one."""
    ends = [at for at, byte in enumerate(made) if byte in b'":, \n[]{}']
    if len(ends) > 1:
        which = draw.randrange(len(ends) - 1)
        made[ends[which] + 1 : ends[which + 1]] = draw.choice((*TOKENS, b"x", b"0", b"-0.5", b'"x"'))


_WAYS: Final = (_flip, _set, _cut, _repeat, _insert, _insert, _splice, _word, _word, _word)
