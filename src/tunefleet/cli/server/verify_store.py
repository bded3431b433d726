"""`tunefleet verify-store`: compare the server's stored files with their digests, on the server's machine."""

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
        bool,
        typer.Option(
            "--delete-unknown", help="Delete files older than the last start that the database does not reference."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify stored files; list damaged and missing ones.

    Artifacts with such a file are listed with it. A damaged file is moved to `quarantine`; pushing it again restores
    it. The server may keep running; it verifies its files in the background, more slowly. The exit code is 1 if any
    file is damaged or missing.

    Files that the database does not reference, such as after restoring an older backup, stay until --delete-unknown.
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
            # A fresh connection: a running server may have recorded the file since.
            with reading(target) as connection:
                if not artifacts.known_anywhere(connection, [digest]):
                    blobs.delete(digest)
    finally:
        blobs.close()
    if as_json:
        print_json({"files": read, "damaged": bad, "unknown": unknown})
    else:
        for each in bad:
            say(f"{each['state']}  {each['digest']}  in {', '.join(each['artifacts']) or 'no artifact'}", style="bad")
        result = f"{len(bad)} damaged or missing." if bad else "all intact."
        say(f"{formatting.plural(read, 'stored file')} verified: {result}")
        if unknown:
            size = formatting.size(sum(unknown.values()))
            done = "deleted" if delete_unknown else "kept; --delete-unknown deletes them"
            say(f"{formatting.plural(len(unknown), 'file')} not in the database ({size}): {done}.")
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _read(blobs: BlobStore, connection: Connection, *, quiet: bool) -> tuple[int, Sequence[dict[str, Any]]]:
    from tunefleet.db.repositories import artifacts
    from tunefleet.errors import NotFoundError
    from tunefleet.orchestrator.storage.verification import artifacts_with, is_intact, quarantine

    known = artifacts.all_digests(connection)
    bad: list[dict[str, Any]] = []
    for number, digest in enumerate(known, 1):
        try:
            state = None if is_intact(blobs, digest) else "damaged"
        except NotFoundError:
            state = "lost"
        if state == "damaged":
            # Moved, not deleted: the content may still be of use.
            quarantine(blobs, digest)
        if state is not None:
            bad.append({"digest": digest, "state": state, "artifacts": artifacts_with(connection, digest=digest)})
        if not quiet and number % 1000 == 0:
            err().print(f"{number:,} of {len(known):,} files", style="dim")
    return len(known), bad
