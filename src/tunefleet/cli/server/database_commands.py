"""`tunefleet db`, `tunefleet backup` and `tunefleet restore`: the server's database, on the server's machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, facts, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.errors import StoreError
from tunefleet.settings import ServerSettings, load

if TYPE_CHECKING:
    from tunefleet.db.backup import Manifest
    from tunefleet.db.engine.offline import DatabaseStatus

app = typer.Typer(help="Check and migrate the server's database.", no_args_is_help=True)

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="The server's data folder; TUNEFLEET_DATABASE_URL takes precedence for the database.",
    ),
]
_WITHOUT_FILES = "This covers the database only; files (artifacts) stay in {where}."


@examples("tunefleet db check", "tunefleet db check --json | jq .current")
def check(*, data: Data = None, as_json: Json = False) -> None:
    """Show the database, its revision, and whether this version can use it, without changing anything.

    The exit code is 1 if the database must be migrated or restored first.
    """
    from tunefleet.db.engine.offline import status_of
    from tunefleet.db.engine.sqlite import fault_of

    target, _ = _place(data)
    fault = fault_of(target) if isinstance(target, Path) and target.exists() else None
    if fault:
        raise StoreError(f"{target} is corrupt: {fault}", hint="Restore a backup (`tunefleet restore`).")
    found = status_of(target)
    if as_json:
        print_json(_status_fields(found))
    else:
        say(facts(_lines(found)))
    if found.revision is not None and not found.current:
        raise typer.Exit(ExitCode.FAILED)


@examples("tunefleet db migrate", "tunefleet db migrate --data ./fleet")
def migrate(*, data: Data = None, as_json: Json = False) -> None:
    """Migrate the database to this version, as a server does when it starts.

    Does nothing if the database is up to date. Concurrent migrations wait for each other.
    SQLite: a copy of the old database is kept next to it. PostgreSQL: back it up first (`tunefleet backup`, pg_dump).
    """
    from tunefleet.db.engine import sqlite
    from tunefleet.db.engine.database import Database
    from tunefleet.db.engine.locks import FolderLock
    from tunefleet.db.engine.offline import closing_all, status_of

    target, folder = _place(data)
    locks: tuple[FolderLock, ...] = ()
    if isinstance(target, Path):
        # The locks of a running server: SQLite tables must not change under it.
        locks = (FolderLock.take(folder), FolderLock.take_database(target, folder))
    with closing_all(*locks):
        before = status_of(target)
        Database.open(target).close()
        after = status_of(target)
    migrated = before.revision is not None and not before.current
    copy = sqlite.path_of(target, str(before.revision)) if migrated and isinstance(target, Path) else None
    if as_json:
        print_json(_status_fields(after) | {"before": before.revision, "copy": None if copy is None else str(copy)})
        return
    if before.current:
        say(f"{after.address} is already at revision {after.revision}.")
    else:
        say(f"Migrated {after.address} from {before.revision or 'no tables'} to revision {after.revision}.")
    if copy is not None:
        say(f"The old database is kept in {copy}.")
    elif migrated:
        say("PostgreSQL: no copy was kept. Before the next upgrade, run pg_dump or `tunefleet backup`.")


@examples("tunefleet backup fleet.zip", "TUNEFLEET_DATABASE_URL=postgresql://… tunefleet backup fleet.zip")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output file; an existing file is replaced.")],
    *,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Back up the server's database, even while it is running.

    The file is a consistent snapshot that `tunefleet restore` can restore into SQLite or PostgreSQL. Protect it
    like a password.
    """
    from tunefleet.db.backup import write

    target, folder = _place(data)
    if not file.absolute().parent.is_dir():
        raise StoreError(f"Folder {file.absolute().parent} not found.", hint="Create it first.")
    try:
        manifest = write(target, file, progress=_shown(as_json))
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}.", hint="Choose another path.") from error
    if as_json:
        print_json(_summary(manifest, file))
        return
    say(
        f"{file}: {formatting.plural(manifest.rows, 'row')} of {formatting.plural(len(manifest.tables), 'table')}"
        f" ({formatting.size(file.stat().st_size)}), from {manifest.engine} at revision {manifest.revision}."
    )
    say(_WITHOUT_FILES.format(where=_files(folder)))


@examples(
    "tunefleet restore fleet.zip --data ./fleet",
    "TUNEFLEET_DATABASE_URL=postgresql://… tunefleet restore fleet.zip",
)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `tunefleet backup`.")],
    *,
    data: Data = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the current content of the database.")] = False,
    as_json: Json = False,
) -> None:
    """Restore the database from a backup (SQLite or PostgreSQL).

    Stop the servers that use the database first. The whole file is checked before anything changes, and the restore
    is all or nothing. A backup from an older version is migrated. API keys in the backup become valid again.
    """
    from tunefleet.db.backup import restore as restored

    target, folder = _place(data)
    manifest = restored(file, target, folder, force=force, progress=_shown(as_json))
    if as_json:
        print_json(_summary(manifest, file))
        return
    say(f"Restored {formatting.plural(manifest.rows, 'row')} from {manifest.made_at} ({manifest.engine}).")
    say(_WITHOUT_FILES.format(where=_files(folder)))


def _place(data: Path | None) -> tuple[Path | str, Path]:
    from tunefleet.db.engine.offline import target_of

    settings = load(ServerSettings) if data is None else load(ServerSettings, data=data)
    url = settings.database_url
    return target_of(None if url is None else url.get_secret_value(), settings.data_dir), settings.data_dir


def _files(folder: Path) -> str:
    return load(ServerSettings).artifacts or str(folder / "artifacts")


def _status_fields(found: DatabaseStatus) -> dict[str, Any]:
    return asdict(found) | {"current": found.current}


def _lines(found: DatabaseStatus) -> list[tuple[str, str | None]]:
    if found.engine is None:
        return [("database", found.address), ("", "Not created yet; the server creates it at its first start.")]
    state = "up to date" if found.current else f"this version needs {found.newest}: tunefleet db migrate"
    revision = (
        f"{found.revision}, {state}" if found.revision else "no tables yet; the server creates them at its first start"
    )
    held = f"{formatting.plural(found.rows, 'row')} in {formatting.plural(found.tables, 'table')}"
    return [("database", found.address), ("engine", found.engine), ("revision", revision), ("holds", held)]


def _summary(manifest: Manifest, file: Path) -> dict[str, Any]:
    known = asdict(manifest) | {"file": str(file), "size_bytes": file.stat().st_size, "rows": manifest.rows}
    return {name: value for name, value in known.items() if name not in {"counters"}}


def _shown(as_json: bool) -> Any:
    return (lambda _name: None) if as_json else (lambda name: err().print(name, style="dim", markup=False))


for _function, _name in ((check, "check"), (migrate, "migrate")):
    add(app, _function, _name)
