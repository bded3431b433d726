"""`tunefleet uninstall`: remove the files of Tunefleet from this machine."""

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
    """A file or folder of Tunefleet on this machine."""

    path: Path
    what: str
    size_bytes: int
    is_data: bool


@examples("tunefleet uninstall", "tunefleet uninstall --yes", "tunefleet uninstall --data --yes")
def uninstall(
    *,
    data: Annotated[
        bool, typer.Option("--data", help="Also remove the data folder: runs, metrics, artifacts.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove Tunefleet's files from this machine.

    The data folder (runs, metrics, artifacts) is kept unless --data is given; a folder in use is never removed. Remove
    the package itself with `pip uninstall tunefleet`.
    """
    found = list(remains())
    to_remove = [item for item in found if data or not item.is_data]
    # There is no question with --json: without --yes it is a dry run.
    if as_json and not yes:
        print_json(
            {
                "remove": [str(item.path) for item in to_remove],
                "keep": [str(i.path) for i in found if i not in to_remove],
            }
        )
        return
    if not as_json:
        _show(found, to_remove)
    if to_remove:
        for item in to_remove:
            _refuse_if_used(item)
        confirm(f"Remove {formatting.plural(len(to_remove), 'item')}?", yes=yes)
        from tunefleet.runtime.warm import engine_registry

        engine_registry.end_idle()
        for item in to_remove:
            _remove(item.path)
        _remove_if_empty(load(ClientSettings).home_dir)
    if as_json:
        print_json({"removed": [str(item.path) for item in to_remove]})
        return
    say("Removed." if to_remove else "Nothing to remove.")
    say("To remove the package: pip uninstall tunefleet", style="dim")


def remains() -> Iterator[Remains]:
    """Yield the files of Tunefleet at the configured paths."""
    client, server = load(ClientSettings), load(ServerSettings)
    for path, what, is_data in (
        (client.client_file, "URL and key of a server", False),
        (client.joined_file, "worker key and settings of `join`", False),
        (client.home_dir / "join.json", "worker key and settings of `join`", False),
        (client.endpoints_dir, "endpoints of live jobs", False),
        (client.envs_folder, "environments of task kinds", False),
        (server.data_dir, "runs, metrics, artifacts, keys", True),
    ):
        if path.exists():
            yield Remains(path, what, _size(path), is_data)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_size for file in files)


def _show(found: list[Remains], to_remove: list[Remains]) -> None:
    if not found:
        return
    listing = table("path", "content", "size", "action", right=("size",))
    for item in found:
        action = "remove" if item in to_remove else "kept; remove with --data"
        listing.add_row(str(item.path), item.what, formatting.size(item.size_bytes), action)
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
                f"{item.path} is in use by a running server.", hint="Stop `tunefleet up` first. Nothing was removed."
            ) from None


def _remove(path: Path) -> None:
    # A link is removed, never the folder it points to.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
