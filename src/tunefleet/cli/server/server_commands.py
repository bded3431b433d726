"""`tunefleet server`, `prune`, `servers`, `storage`, `verify-store`: run a server, and maintain it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, print_json, say, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Yes, confirm, connect, parse_duration
from tunefleet.schemas.api import PruneReply
from tunefleet.schemas.server_info import Kept
from tunefleet.settings import ServerSettings, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunefleet.artifacts import BlobStore
    from tunefleet.db import Connection


# A server that is silent for longer probably does not respond.
_MISSED_S = 10.0
_WHAT: Final[dict[Kept, str]] = {
    "results": "outputs of runs",
    "checkpoints": "checkpoints of runs",
    "federations": "versions, updates and chunks of federations",
    "data": "pushed datasets and models",
    "arriving": "uploads in progress",
    "unused": "unreferenced files",
    "database": "tables, metrics and logs",
    "working": "working files of the server",
}


@examples(
    "tunefleet server",
    "tunefleet server --host 0.0.0.0 --data /srv/tunefleet",
    "TUNEFLEET_DATABASE_URL=postgresql://… tunefleet server",
)
def server(
    *,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Folder for the database, files and keys.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; 0.0.0.0 allows remote access.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on.")] = None,
    adopt_files: Annotated[
        bool,
        typer.Option(
            "--adopt-files", help="Use once, to adopt the data folder for this database; unknown files are kept."
        ),
    ] = False,
) -> None:
    """Run a server on this machine.

    Runs until Ctrl-C or SIGTERM. All other settings come from TUNEFLEET_… variables or a .env file. `tunefleet up`
    starts a server and a worker together.
    """
    from tunefleet.api.process import main

    given = [("--data", data), ("--host", host), ("--port", port)]
    arguments = [f"{name}={value}" for name, value in given if value is not None]
    if code := main([*arguments, *(["--adopt-files"] if adopt_files else [])]):
        raise typer.Exit(code)


@examples("tunefleet prune --dry-run", "tunefleet prune --older-than 7d --yes")
def prune(
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Minimum time since the workflow ended: 12h, 7d, 4w.")
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, without removing it.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove old workflows with their data.

    Removes ended workflows with their metrics, logs and artifacts, then unreferenced files.
    """
    age_s = parse_duration(older_than)
    with connect(patience_s=10.0) as client:
        # The dry run gives the amount for the confirmation.
        reply = client.prune(age_s, dry_run=True)
        if not dry_run:
            confirm(f"Remove {_amount(reply)} older than {older_than}?", yes=yes)
            reply = client.prune(age_s)
    if as_json:
        print_json(reply)
    else:
        say(f"{'Would remove' if dry_run else 'Removed'} {_amount(reply)}.")


def _amount(reply: PruneReply) -> str:
    return (
        f"{formatting.plural(len(reply.workflows), 'workflow')}, {formatting.plural(len(reply.artifacts), 'artifact')}"
        f" ({formatting.size(reply.freed_bytes)})"
    )


@examples("tunefleet servers", "tunefleet servers --json")
def servers(*, as_json: Json = False) -> None:
    """List the servers that share a database.

    A server on SQLite is always the only one.
    """
    with connect() as client:
        view = client.servers()
    if as_json:
        print_json(view)
        return
    if not view.shared:
        say("This is the only server that uses its database.")
        return
    listing = table("server", "host", "url", "version", "role", right=())
    for each in view.servers:
        state = (
            f"no heartbeat for {each.silent_s:.0f} s" if each.silent_s > _MISSED_S else "leader" if each.leads else ""
        )
        state += " (this server)" if each.this else ""
        listing.add_row(each.id, each.host, each.url or "-", each.version, state.strip())
    say(listing)


@examples("tunefleet storage", "tunefleet storage --json")
def storage(*, as_json: Json = False) -> None:
    """Show the server's disk usage.

    `tunefleet prune` frees space.
    """
    with connect() as client:
        view = client.storage()
    if as_json:
        print_json(view)
        return
    listing = table("category", "files", "size", "content", right=("files", "size"))
    for use in view.uses:
        listing.add_row(use.kind, str(use.files), formatting.size(use.size_bytes), _WHAT[use.kind])
    say(listing)
    say(
        f"Total: {formatting.size(view.total_bytes)}. Disk: {formatting.size(view.disk_free_bytes)} free of"
        f" {formatting.size(view.disk_total_bytes)}."
    )


@examples("tunefleet verify-store --data ./fleet", "tunefleet verify-store --json | jq .damaged")
def verify_store(
    *,
    data: Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The server's data folder.")] = None,
    delete_unknown: Annotated[
        bool,
        typer.Option(
            "--delete-unknown",
            help="Delete files that the database does not reference and that are older than the last server start.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify stored files and list damaged and missing ones.

    Each file is listed with the artifacts that contain it. A damaged file is moved to `quarantine`; push it again
    to restore it. The server can keep running; it also verifies its files in the background, but more slowly. The
    exit code is 1 if any file is damaged or missing.

    Files that the database does not reference, for example after you restored an older backup, are kept unless you
    pass --delete-unknown.
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
