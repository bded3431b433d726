"""Pairing of database, file store and data folder: each gets the same marker at the first start.

    database            meta `files_mark`: a random name
    file store          a small file that contains the name
    <data>/database-id  the name

A server with the wrong database, or one that lost its rows, does not start unless the operator confirms the pairing
(`--adopt-files`). A marker does not show age: a database restored from last week knows none of this week's files. So
files in the store that no row refers to at a start are kept until a user deletes them.
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
# Longer than the interval between two heartbeats of a server.
_LISTEN_S: Final = 3.5
_ADOPT: Final = "If this is the right database, start the server once with --adopt-files; nothing is deleted."


def digest_of(connection: Connection) -> str | None:
    """Return the digest of the marker; None if there is none."""
    mark = keys.get_meta(connection, _META)
    return None if mark is None else _named(mark)[0]


def check(database: Database, name: str, blobs: BlobStore, folder: Path, *, now: float, adopt: bool = False) -> None:
    """Check that database, file store and data folder belong together, and pair new ones; blocks.

    Raises:
        StoreError: If they do not belong together, or other servers use a different file store.
    """
    known = database.read(lambda connection: keys.get_meta(connection, _META)).result()
    noted = _noted(folder)
    if noted is not None and noted != known and not adopt:
        raise StoreError(
            f"The data folder {folder} belongs to another database than {name}, which is "
            + ("new, or has lost its rows." if known is None else "paired with other files."),
            hint=f"Check TUNEFLEET_DATABASE_URL and --data; `tunefleet restore` restores a lost database. {_ADOPT}",
        )
    if known is None or not blobs.has(_named(known)[0]):
        known = _pair(database, name, blobs, known, adopt=adopt)
    database.write(partial(keys.keep_unknown_files, now=now)).result()
    if noted != known:
        write_private(folder / _NAME, known + "\n")


def require(connection: Connection, name: str, blobs: BlobStore, folder: Path) -> None:
    """Check that the file store was paired with the database by a server's start; changes nothing.

    Raises:
        StoreError: If they do not belong together.
    """
    known, noted = keys.get_meta(connection, _META), _noted(folder)
    if known is None or (noted is not None and noted != known) or not blobs.has(_named(known)[0]):
        raise StoreError(
            f"The files in {blobs.root} or the bucket named here do not belong to {name}; nothing was done.",
            hint="Check TUNEFLEET_DATABASE_URL, TUNEFLEET_ARTIFACTS and --data; a server pairs them when it starts.",
        )


def _pair(database: Database, name: str, blobs: BlobStore, known: str | None, *, adopt: bool) -> str:
    """Pair the file store with the database if allowed, and return the marker."""
    if known is not None and database.shared and _others_serve(database):
        raise StoreError(
            f"Other servers on this database use a file store other than {blobs.root} or the bucket named here.",
            hint="Give every server the same bucket in TUNEFLEET_ARTIFACTS, or the same shared folder as `artifacts` "
            "in its data folder.",
        )
    if not adopt and known is not None:
        raise StoreError(
            f"The files of {name} are not in {blobs.root} or the bucket named here.",
            hint=f"Check TUNEFLEET_ARTIFACTS and --data. {_ADOPT}",
        )
    if not adopt and _foreign(database, blobs):
        raise StoreError(
            f"The files in {blobs.root} or the bucket named here belong to another database than {name}, which is new, "
            "or has lost its rows.",
            hint=f"Check TUNEFLEET_DATABASE_URL, TUNEFLEET_ARTIFACTS and --data. {_ADOPT}",
        )
    made = known or secrets.token_hex(16)
    # The file is written first, so that a marker in the database always has its file.
    digest, body = _named(made)
    with blobs.append(digest, 0, len(body)) as upload:
        upload.write(body)
        upload.finish()
    if adopt:
        log.warning("Paired %s with the files in %s.", name, blobs.root)
    return database.write(lambda connection: _store(connection, made)).result()


def _foreign(database: Database, blobs: BlobStore) -> bool:
    """Whether the store has files, none of which any row refers to."""
    found = [digest for digest, size in blobs.kept_before(float("inf")).items() if not _is_mark(blobs, digest, size)]
    return bool(found) and not database.read(lambda connection: artifacts.known_anywhere(connection, found)).result()


def _is_mark(blobs: BlobStore, digest: str, size_bytes: int) -> bool:
    """Whether a file is a marker, of a concurrently started server or of a lost database."""
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
    """Store the marker unless another server was faster; returns the stored one."""
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
    # Compares heartbeats over time instead of timestamps: the servers' clocks may differ.
    time.sleep(_LISTEN_S)
    return bool(look() - before)
