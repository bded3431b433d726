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
    from tunefleet.db.backup.archive import Manifest
    from tunefleet.db.engine.offline import Standing

app = typer.Typer(help="Check and migrate the server's database.", no_args_is_help=True)

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The server's data folder; TUNEFLEET_DATABASE_URL is heeded, too."),
]
_NOT_IN_IT = "It has the database alone: files (artifacts) stay where they are, in {where}."


@examples("tunefleet db check", "tunefleet db check --json | jq .current")
def check(*, data: Data = None, as_json: Json = False) -> None:
    """Say what the database is, and whether this version can work with it; changes nothing.

    The exit code is 1 if it has to be migrated or restored first.
    """
    from tunefleet.db.engine.offline import standing
    from tunefleet.db.engine.sqlite import fault_of

    target, _ = _place(data)
    fault = fault_of(target) if isinstance(target, Path) and target.exists() else None
    if fault:
        raise StoreError(f"{target} is damaged: {fault}", hint="Restore a backup (`tunefleet restore`).")
    found = standing(target)
    if as_json:
        print_json(_told(found))
    else:
        say(facts(_lines(found)))
    if found.revision is not None and not found.current:
        raise typer.Exit(ExitCode.FAILED)


@examples("tunefleet db migrate", "tunefleet db migrate --data ./fleet")
def migrate(*, data: Data = None, as_json: Json = False) -> None:
    """Bring the database's tables to this version, as a server does when it starts.

    Nothing happens if they are there. Several at once wait for each other.
    Of SQLite the database as it was is kept beside it; of PostgreSQL take a backup first (`tunefleet backup`, pg_dump).
    """
    from tunefleet.db.engine import sqlite
    from tunefleet.db.engine.database import Database
    from tunefleet.db.engine.locks import FolderLock
    from tunefleet.db.engine.offline import closing_all, standing

    target, folder = _place(data)
    locks: tuple[FolderLock, ...] = ()
    if isinstance(target, Path):
        locks = (FolderLock.take(folder), FolderLock.take_database(target, folder))
    with closing_all(*locks):
        before = standing(target)
        Database.open(target).close()
        after = standing(target)
    migrated = before.revision is not None and not before.current
    copy = sqlite.path_of(target, str(before.revision)) if migrated and isinstance(target, Path) else None
    if as_json:
        print_json(_told(after) | {"before": before.revision, "copy": None if copy is None else str(copy)})
        return
    if before.current:
        say(f"{after.address} is at revision {after.revision} already.")
    else:
        say(f"{after.address} is at revision {after.revision} now ({before.revision or 'no tables'} before).")
    if copy is not None:
        say(f"As it was it is kept in {copy}.")
    elif migrated:
        say("PostgreSQL keeps no copy of it as it was; before the next upgrade: pg_dump, or tunefleet backup.")


@examples("tunefleet backup fleet.zip", "TUNEFLEET_DATABASE_URL=postgresql://… tunefleet backup fleet.zip")
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; a file there is replaced.")],
    *,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write the server's database into a file, also while it runs.

    The file holds one moment of it, whether it is SQLite's or PostgreSQL's.
    `tunefleet restore` fills a database of either kind from it. Keep it as you keep a password.
    """
    from tunefleet.db.backup import archive

    target, folder = _place(data)
    if not file.absolute().parent.is_dir():
        raise StoreError(f"There is no folder {file.absolute().parent}.", hint="Make it first.")
    try:
        manifest = archive.write(target, file, progress=_shown(as_json))
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}.", hint="Choose another place.") from error
    if as_json:
        print_json(_summary(manifest, file))
        return
    say(
        f"{file}: {formatting.plural(manifest.rows, 'row')} of {formatting.plural(len(manifest.tables), 'table')}"
        f" ({formatting.size(file.stat().st_size)}), from {manifest.engine} at revision {manifest.revision}."
    )
    say(_NOT_IN_IT.format(where=_files(folder)))


@examples(
    "tunefleet restore fleet.zip --data ./fleet",
    "TUNEFLEET_DATABASE_URL=postgresql://… tunefleet restore fleet.zip",
)
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `tunefleet backup` has written.")],
    *,
    data: Data = None,
    force: Annotated[bool, typer.Option("--force", help="Throw away what the database has.")] = False,
    as_json: Json = False,
) -> None:
    """Fill a database from a backup: SQLite's or PostgreSQL's.

    Stop its servers first. The file is checked whole before anything changes, and all of it is restored or nothing. A
    backup of an older version is migrated. Keys that worked then work again.
    """
    from tunefleet.db.backup.archive import restore as restored

    target, folder = _place(data)
    manifest = restored(file, target, folder, force=force, progress=_shown(as_json))
    if as_json:
        print_json(_summary(manifest, file))
        return
    say(f"Restored {formatting.plural(manifest.rows, 'row')} of {manifest.made_at}, from {manifest.engine}.")
    say(_NOT_IN_IT.format(where=_files(folder)))


def _place(data: Path | None) -> tuple[Path | str, Path]:
    from tunefleet.db.engine.offline import target_of

    settings = load(ServerSettings) if data is None else load(ServerSettings, data=data)
    url = settings.database_url
    return target_of(None if url is None else url.get_secret_value(), settings.data_dir), settings.data_dir


def _files(folder: Path) -> str:
    return load(ServerSettings).artifacts or str(folder / "artifacts")


def _told(found: Standing) -> dict[str, Any]:
    return asdict(found) | {"current": found.current}


def _lines(found: Standing) -> list[tuple[str, str | None]]:
    if found.engine is None:
        return [("database", found.address), ("", "It is not there yet; the server's first start makes it.")]
    state = "as this version wants it" if found.current else f"this version wants {found.newest}: tunefleet db migrate"
    revision = f"{found.revision}, {state}" if found.revision else "no tables yet; the server's first start makes them"
    held = f"{formatting.plural(found.rows, 'row')} in {formatting.plural(found.tables, 'table')}"
    return [("database", found.address), ("engine", found.engine), ("revision", revision), ("holds", held)]


def _summary(manifest: Manifest, file: Path) -> dict[str, Any]:
    known = asdict(manifest) | {"file": str(file), "size_bytes": file.stat().st_size, "rows": manifest.rows}
    return {name: value for name, value in known.items() if name not in {"counters"}}


def _shown(as_json: bool) -> Any:
    return (lambda _name: None) if as_json else (lambda name: err().print(name, style="dim", markup=False))


for _function, _name in ((check, "check"), (migrate, "migrate")):
    add(app, _function, _name)
