"""`tunefleet uninstall`: show what Tunefleet left on this machine, and remove it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Yes, confirm
from tunefleet.errors import ConflictError
from tunefleet.settings import ClientSettings, ServerSettings, load

_LOCKS = ("up.lock", "lock")


@dataclass(frozen=True, slots=True)
class Remains:
    """Something that lies on this machine."""

    path: Path
    what: str
    size_bytes: int
    is_data: bool


@examples("tunefleet uninstall", "tunefleet uninstall --yes", "tunefleet uninstall --data --yes")
def uninstall(
    *,
    data: Annotated[
        bool, typer.Option("--data", help="Remove the data folder too: tasks, metrics, artifacts.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show what Tunefleet left on this machine, and remove it.

    The data folder (tasks, metrics, artifacts) stays unless --data is given; a folder in use is never touched. The
    package itself is removed with `pip uninstall tunefleet`.
    """
    found = list(remains())
    going = [item for item in found if data or not item.is_data]
    if as_json and not yes:
        print_json(
            {"remove": [str(item.path) for item in going], "keep": [str(i.path) for i in found if i not in going]}
        )
        return
    if not as_json:
        _show(found, going)
    if going:
        for item in going:
            _refuse_if_used(item)
        confirm(f"Remove {formatting.plural(len(going), 'thing')}?", yes=yes)
        from tunefleet.runtime.warm import engine_registry

        engine_registry.end_idle()
        for item in going:
            _remove(item.path)
        _remove_if_empty(load(ClientSettings).home_dir)
    if as_json:
        print_json({"removed": [str(item.path) for item in going]})
        return
    say("Removed." if going else "Nothing to remove.")
    say("The package: pip uninstall tunefleet", style="dim")


def remains() -> Iterator[Remains]:
    """Yield what lies on this machine, as the settings say where."""
    client, server = load(ClientSettings), load(ServerSettings)
    for path, what, is_data in (
        (client.client_file, "URL and key of a server", False),
        (client.joined_file, "what this machine joined a server with", False),
        (client.home_dir / "join.json", "what this machine joined a server with", False),
        (client.endpoints_dir, "where live jobs can be found", False),
        (client.envs_folder, "environments of task kinds", False),
        (server.data_dir, "tasks, metrics, artifacts, keys", True),
    ):
        if path.exists():
            yield Remains(path, what, _size(path), is_data)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_size for file in files)


def _show(found: list[Remains], going: list[Remains]) -> None:
    if not found:
        return
    listing = table("path", "what", "size", "", right=("size",))
    for item in found:
        fate = "removed" if item in going else "stays; --data removes it"
        listing.add_row(str(item.path), item.what, formatting.size(item.size_bytes), fate)
    say(listing)


def _refuse_if_used(item: Remains) -> None:
    for name in _LOCKS if item.is_data else ():
        lock = item.path / name
        if not lock.exists():
            continue
        try:
            FileLock(lock).acquire(timeout=0).lock.release()
        except Timeout:
            raise ConflictError(
                f"{item.path} is in use by a running server.", hint="Stop `tunefleet up` first; nothing was removed."
            ) from None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
