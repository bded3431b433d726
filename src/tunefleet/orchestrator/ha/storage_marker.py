"""Database, file store and data folder belong together: each has the same mark, from the first start on.

    database            meta `files_mark`: a random name
    file store          a small file that says the name
    <data>/database-id  the name

A server with the wrong database, or one that lost its rows, is refused unless a person says that they belong together
(`--adopt-files`). A mark tells nothing of age: a database that was put back as it was last week knows none of this
week's files. So what the store has at a start and no row knows stays, until a person deletes it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Final

from tunefleet.artifacts import BlobStore, write_private
from tunefleet.db import Connection, Database
from tunefleet.db.access import keys
from tunefleet.db.fleet import servers
from tunefleet.db.repositories import artifacts
from tunefleet.errors import StoreError

log = logging.getLogger(__name__)
_META: Final = "files_mark"
_BEGIN: Final = "The files of the Tunefleet database "
_NAME: Final = "database-id"
# Longer than two signs of life of a server are apart.
_LISTEN_S: Final = 3.5
_ADOPT: Final = (
    "If this database is the one to go on with, start the server once with --adopt-files: nothing is deleted."
)


def digest_of(connection: Connection) -> str | None:
    """Return the digest of the mark; null if there is none."""
    mark = keys.get_meta(connection, _META)
    return None if mark is None else _named(mark)[0]


def check(database: Database, name: str, blobs: BlobStore, folder: Path, *, now: float, adopt: bool = False) -> None:
    """Refuse a database whose files or data folder are another's; blocks.

    Raises:
        StoreError: If they do not belong together, or others serve with files somewhere else.
    """
    known = database.read(lambda connection: keys.get_meta(connection, _META)).result()
    noted = _noted(folder)
    if noted is not None and noted != known and not adopt:
        raise StoreError(
            f"The data folder {folder} belongs to another database than {name}, which is "
            + ("new, or has lost its rows." if known is None else "paired with other files."),
            hint=f"Check TUNEFLEET_DATABASE_URL and --data; `tunefleet restore` brings a lost database back. {_ADOPT}",
        )
    if known is None or not blobs.has(_named(known)[0]):
        known = _pair(database, name, blobs, known, adopt=adopt)
    database.write(partial(keys.keep_unknown_files, now=now)).result()
    if noted != known:
        write_private(folder / _NAME, known + "\n")


def require(connection: Connection, name: str, blobs: BlobStore, folder: Path) -> None:
    """Refuse to look after files that were not paired with a database by a start of a server; changes nothing.

    Raises:
        StoreError: If they do not belong together.
    """
    known, noted = keys.get_meta(connection, _META), _noted(folder)
    if known is None or (noted is not None and noted != known) or not blobs.has(_named(known)[0]):
        raise StoreError(
            f"The files in {blobs.root} or the bucket named here are not those of {name}: nothing was looked at.",
            hint="Check TUNEFLEET_DATABASE_URL, TUNEFLEET_ARTIFACTS and --data; a server pairs them when it starts.",
        )


def _pair(database: Database, name: str, blobs: BlobStore, known: str | None, *, adopt: bool) -> str:
    """Mark the file store as the database's, if it may be; returns the mark."""
    if known is not None and database.shared and _others_serve(database):
        raise StoreError(
            f"Other servers on this database keep their files elsewhere than in {blobs.root} or the bucket named here.",
            hint="Give every server the same bucket in TUNEFLEET_ARTIFACTS, or the same shared folder as `artifacts` "
            "in its data folder.",
        )
    if not adopt and known is not None:
        raise StoreError(
            f"The files of {name} are not in {blobs.root} or the bucket named here, where this server looks for them.",
            hint=f"Check TUNEFLEET_ARTIFACTS and --data. {_ADOPT}",
        )
    if not adopt and _foreign(database, blobs):
        raise StoreError(
            f"The files in {blobs.root} or the bucket named here belong to another database than {name}, which is new, "
            "or has lost its rows.",
            hint=f"Check TUNEFLEET_DATABASE_URL, TUNEFLEET_ARTIFACTS and --data. {_ADOPT}",
        )
    made = known or secrets.token_hex(16)
    # The file comes first: what the database names has been there.
    digest, body = _named(made)
    with blobs.append(digest, 0, len(body)) as upload:
        upload.write(body)
        upload.finish()
    if adopt:
        log.warning("%s and the files in %s belong together from now on.", name, blobs.root)
    return database.write(lambda connection: _store(connection, made)).result()


def _foreign(database: Database, blobs: BlobStore) -> bool:
    """Whether there are files, and rows know none of them."""
    found = [digest for digest, size in blobs.kept_before(float("inf")).items() if not _is_mark(blobs, digest, size)]
    return bool(found) and not database.read(lambda connection: artifacts.known_anywhere(connection, found)).result()


def _is_mark(blobs: BlobStore, digest: str, size_bytes: int) -> bool:
    """Whether a file is a mark: of a database that was marked at this moment, or of one that is gone."""
    return size_bytes == len(_named("0" * 32)[1]) and blobs.read(digest).startswith(_BEGIN.encode())


def _named(mark: str) -> tuple[str, bytes]:
    body = f"{_BEGIN}{mark}.\n".encode()
    return hashlib.sha256(body).hexdigest(), body


def _noted(folder: Path) -> str | None:
    try:
        return (folder / _NAME).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def _store(connection: Connection, made: str) -> str:
    """Store the mark unless another server was faster; returns the one that holds."""
    known = keys.get_meta(connection, _META)
    if known is None:
        keys.put_meta(connection, _META, made)
    return known or made


def _others_serve(database: Database) -> bool:
    def look() -> set[tuple[str, int]]:
        return {(row.process, row.renewals) for row in database.read(servers.all_rows).result()}

    before = look()
    if not before:
        return False
    time.sleep(_LISTEN_S)
    return bool(look() - before)
