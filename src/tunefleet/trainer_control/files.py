"""Small durable files: atomic writes, tolerant reads."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def sync_folder(path: Path) -> None:
    """Make the file names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(folder: Path) -> None:
    """Create a folder that other users of this machine cannot read, whatever the umask; parents are created as well.

    Args:
        folder: A folder of Tunefleet's own. If it exists, its permissions are fixed.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def write_json(path: Path, data: Any, *, mode: int = 0o600, sync: bool = False) -> None:
    """Replace a JSON file atomically: a reader sees the old or the new file, never a part.

    Args:
        path: The file; its folder must exist.
        data: Any JSON value.
        mode: Permissions of the file, set when it is created.
        sync: Whether the file must survive a power cut, not only a killed process.
    """
    write_text(path, json.dumps(data, separators=(",", ":"), allow_nan=False), mode=mode, sync=sync)


def write_text(path: Path, text: str, *, mode: int = 0o600, sync: bool = False) -> None:
    """Replace a text file atomically; takes the arguments of `write_json`."""
    # Two threads of two processes may write the same file, so the temporary name holds both ids.
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    # The rename is durable only when the folder is synced as well.
    if sync:
        sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is no such file or it holds no JSON object."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def until(stop: threading.Event, every_s: float, work: Callable[[], None], trouble: str, log: logging.Logger) -> None:
    """Run `work` periodically until an event is set.

    A failure is retried; it is logged once, and again only after a success in between.

    Args:
        every_s: Seconds before each call.
        trouble: Half a sentence for the log, such as `The folder cannot be read`.
        log: Receives the failures.
    """
    logged = False
    while not stop.wait(every_s):
        try:
            work()
            logged = False
        except Exception:
            if not logged:
                log.exception("%s; trying again", trouble)
            logged = True
