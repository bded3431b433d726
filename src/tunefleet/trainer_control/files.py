"""Small durable files: write whole or not at all, read without surprise."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(folder: Path) -> None:
    """Make a folder that other users of this machine cannot look into, whatever the umask; its parents are made, too.

    Args:
        folder: One of ours: a job's, or one of its kind. If it exists, its permissions are fixed.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def write_json(path: Path, data: Any, *, mode: int = 0o600, sync: bool = False) -> None:
    """Replace a JSON file in one act: a reader sees the old or the new one, never a part.

    Args:
        path: The file; its folder exists.
        data: What `json` can hold.
        mode: Permissions of the file from its first moment.
        sync: Whether it must survive a power cut, not only a killed process.
    """
    write_text(path, json.dumps(data, separators=(",", ":"), allow_nan=False), mode=mode, sync=sync)


def write_text(path: Path, text: str, *, mode: int = 0o600, sync: bool = False) -> None:
    """Replace a file in one act; arguments are those of `write_json`."""
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
    if sync:
        sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is no such file or no object in it."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def until(stop: threading.Event, every_s: float, work: Callable[[], None], trouble: str, log: logging.Logger) -> None:
    """Do a piece of work every so often, until an event is set; returns then.

    A failure ends nothing: it is tried again, and told once until it has worked in between.

    Args:
        every_s: Seconds before each time.
        trouble: Half a sentence for the log, such as `The folder cannot be read`.
        log: Told of a failure.
    """
    complained = False
    while not stop.wait(every_s):
        try:
            work()
            complained = False
        except Exception:
            if not complained:
                log.exception("%s; trying again", trouble)
            complained = True
