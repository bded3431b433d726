"""Look for secrets where none may be: in files and databases of a fleet, in its logs, and in its Redis.

A secret counts as seen in plain, in base64 (whatever stood before it), in hex, and as URLs and JSON write it. Files are
looked at as they are, so a database file and its log count with all that was ever written there.
"""

from __future__ import annotations

import base64
import gzip
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
import sqlalchemy

LEAST: Final = 8
"""Shorter texts stand in files by chance."""
_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret that was seen.

    Args:
        secret: Its name, never its value.
        place: The file, table or Redis key.
        form: How it was written.
    """

    secret: str
    place: str
    form: str


def find(
    secrets: Mapping[str, str],
    folders: Sequence[Path],
    redis_url: str | None = None,
    database_url: str | None = None,
) -> list[Finding]:
    """Return where secrets are seen.

    Args:
        secrets: Values by the names under which they are told.
        folders: Every file in them is read, compressed ones unpacked too.
        redis_url: Every key of it is read.
        database_url: SQLAlchemy's, of a PostgreSQL; every row of every table is read.

    Raises:
        ValueError: If a secret is too short to be looked for.
    """
    if short := [name for name, value in secrets.items() if len(value) < LEAST]:
        raise ValueError(f"{short} have less than {LEAST} characters, and would be found by chance")
    forms = [(name, form, written) for name, value in secrets.items() for form, written in forms_of(value)]
    found: dict[Finding, None] = {}
    for place, data in _everything(folders, redis_url, database_url):
        for name, form, written in forms:
            if written in data:
                found[Finding(name, place, form)] = None
    return list(found)


def forms_of(value: str) -> Iterator[tuple[str, bytes]]:
    """Yield how a text may be written, as (name of the form, bytes)."""
    plain = value.encode()
    written = {"plain": plain, "hex": plain.hex().encode(), "url": urllib.parse.quote(value, safe="").encode()}
    written["json"] = json.dumps(value)[1:-1].encode()
    for shift in range(3):
        # What base64 makes of it depends on what stands before: three cases. First and last characters are shared.
        whole = base64.b64encode(b"\0" * shift + plain).rstrip(b"=")
        written[f"base64+{shift}"] = whole[(0, 2, 3)[shift] : len(whole) - 1]
    seen: set[bytes] = set()
    for form, text in written.items():
        if text not in seen:
            seen.add(text)
            yield form, text


def _everything(
    folders: Sequence[Path], redis_url: str | None, database_url: str | None
) -> Iterator[tuple[str, bytes]]:
    for folder in folders:
        yield from _files(folder)
    if redis_url is not None:
        yield from _redis(redis_url)
    if database_url is not None:
        yield from _rows(database_url)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        yield str(path), path.name.encode()
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        overlap = b""
        with gzip.open(path) if packed else path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield str(path), overlap + piece
                overlap = piece[-4096:]


def _redis(url: str) -> Iterator[tuple[str, bytes]]:
    with redis.Redis.from_url(url) as client:
        read: dict[bytes, Callable[[bytes], object]] = {
            b"string": client.get,
            b"stream": client.xrange,
            b"hash": client.hgetall,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1),
        }
        for key in client.scan_iter(count=1000):
            # `repr` writes what is no text as it stands in Python: a secret is text.
            yield f"Redis {key!r}", key + repr(read[client.type(key)](key)).encode()


def _rows(url: str) -> Iterator[tuple[str, bytes]]:
    engine = sqlalchemy.create_engine(url)
    try:
        tables = sqlalchemy.MetaData()
        tables.reflect(engine)
        with engine.connect() as connection:
            for table in tables.sorted_tables:
                for row in connection.execution_options(yield_per=500).execute(table.select()):
                    yield f"table {table.name}", b"\n".join(_bytes(value) for value in row if value is not None)
    finally:
        engine.dispose()


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return (value if isinstance(value, str) else json.dumps(value, default=str)).encode(errors="surrogateescape")
