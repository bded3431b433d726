"""`tunefleet verify-store`: whether the server's stored files are what their digests say, on the server's machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.settings import ServerSettings, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunefleet.artifacts import BlobStore
    from tunefleet.db import Connection


@examples("tunefleet verify-store --data ./fleet", "tunefleet verify-store --json | jq .damaged")
def verify_store(
    *,
    data: Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The server's data folder.")] = None,
    delete_unknown: Annotated[
        bool, typer.Option("--delete-unknown", help="Delete files of before the last start that no row knows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read all stored files; name what is damaged or lost.

    The artifacts that have such a file are named with it. A damaged file is put aside in `quarantine`; pushing it again
    brings it back. The server may run meanwhile, and reads its files itself, more slowly. The exit code is 1 if
    anything is damaged or lost.

    Files that the database does not know, as after an older copy of it was put back, stay until --delete-unknown.
    """
    from tunefleet.db.engine.offline import name_of, reading, target_of
    from tunefleet.db.repositories import artifacts
    from tunefleet.orchestrator.ha import storage_marker
    from tunefleet.orchestrator.storage.blob_stores import open_blobs
    from tunefleet.orchestrator.storage.garbage_collection import unknown_files

    settings = load(ServerSettings) if data is None else load(ServerSettings, data=data)
    url = settings.database_url
    target = target_of(None if url is None else url.get_secret_value(), settings.data_dir)
    blobs = open_blobs(settings)
    try:
        with reading(target) as connection:
            storage_marker.require(connection, name_of(target), blobs, settings.data_dir)
            read, bad = _read(blobs, connection, quiet=as_json)
            unknown = unknown_files(blobs, connection)
        for digest in unknown if delete_unknown else ():
            with reading(target) as connection:  # the server may have recorded it meanwhile
                if not artifacts.known_anywhere(connection, [digest]):
                    blobs.delete(digest)
    finally:
        blobs.close()
    if as_json:
        print_json({"files": read, "damaged": bad, "unknown": unknown})
    else:
        for each in bad:
            say(f"{each['state']}  {each['digest']}  of {', '.join(each['artifacts']) or 'no artifact'}", style="bad")
        verdict = f"{formatting.plural(len(bad), 'file')} of them damaged or lost." if bad else "all of them are whole."
        say(f"{formatting.plural(read, 'stored file')} read: {verdict}")
        if unknown:
            size = formatting.size(sum(unknown.values()))
            done = "deleted" if delete_unknown else "kept; --delete-unknown deletes them"
            say(f"{formatting.plural(len(unknown), 'file')} that the database does not know ({size}): {done}.")
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _read(blobs: BlobStore, connection: Connection, *, quiet: bool) -> tuple[int, Sequence[dict[str, Any]]]:
    from tunefleet.db.repositories import artifacts
    from tunefleet.errors import NotFoundError
    from tunefleet.orchestrator.storage.verification import artifacts_with, is_whole, set_aside

    known = artifacts.all_digests(connection)
    bad: list[dict[str, Any]] = []
    for number, digest in enumerate(known, 1):
        try:
            state = None if is_whole(blobs, digest) else "damaged"
        except NotFoundError:
            state = "lost"
        if state == "damaged":
            set_aside(blobs, digest)
        if state is not None:
            bad.append({"digest": digest, "state": state, "artifacts": artifacts_with(connection, digest=digest)})
        if not quiet and number % 1000 == 0:
            err().print(f"{number:,} of {len(known):,} files", style="dim")
    return len(known), bad
