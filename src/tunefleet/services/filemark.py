"""Servers on one database must keep their files in one place: a mark there, whose name the database knows.

A server that does not find the mark looks at other files than those that serve now, and would lose half of what is
uploaded; it is refused. If nobody else serves, the files were moved or restored: it marks the place anew.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.errors import StoreError
from tunefleet.store import Connection, Database, keys, servers

log = logging.getLogger(__name__)
_META: Final = "files_mark"
_LISTEN_S: Final = 3.5
"""Longer than two signs of life of a server are apart."""


def digest_of(connection: Connection) -> str | None:
    """Return the digest of the mark; null if there is none."""
    mark = keys.get_meta(connection, _META)
    return None if mark is None else _named(mark)[0]


def check(database: Database, blobs: BlobStore) -> None:
    """Refuse files that are not those of the other servers; blocks.

    Raises:
        StoreError: If others serve with files somewhere else.
    """
    if not database.shared:
        return
    known = database.read(lambda connection: keys.get_meta(connection, _META)).result()
    if known is not None and blobs.has(_named(known)[0]):
        return
    if known is not None and _others_serve(database):
        raise StoreError(
            f"Other servers on this database keep their files elsewhere than in {blobs.root} or the bucket named here.",
            hint="Give every server the same bucket in TUNEFLEET_ARTIFACTS, or the same shared folder as `artifacts` "
            "in its data folder.",
        )
    made = secrets.token_hex(16)
    # The file comes first: what the database names has been there.
    digest, body = _named(made)
    with blobs.append(digest, 0, len(body)) as upload:
        upload.write(body)
        upload.finish()
    if database.write(lambda connection: _store(connection, known, made)).result():
        if known is not None:
            log.warning("The files of this database were not where they are looked for; the place is marked anew.")
        return
    check(database, blobs)  # another server was faster


def _named(mark: str) -> tuple[str, bytes]:
    body = f"The files of the Tunefleet database {mark}.\n".encode()
    return hashlib.sha256(body).hexdigest(), body


def _store(connection: Connection, known: str | None, made: str) -> bool:
    if keys.get_meta(connection, _META) != known:
        return False
    if known is None:
        keys.put_meta(connection, _META, made)
    else:
        keys.change_meta(connection, _META, made)
    return True


def _others_serve(database: Database) -> bool:
    def look() -> set[tuple[str, int]]:
        return {(row.process, row.renewals) for row in database.read(servers.all_rows).result()}

    before = look()
    if not before:
        return False
    time.sleep(_LISTEN_S)
    return bool(look() - before)
