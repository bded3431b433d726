"""What a run delivers: files and folders.

A program may be killed at any moment, so everything is written under another name and renamed when it is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder whole or not at all; what was there before is replaced."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    for path in partial.rglob("*"):
        if path.is_file():
            _sync(path)
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
    _sync(target.parent)


def write_file(target: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = target.with_name(f".{target.name}.partial")
    partial.write_bytes(content)
    _sync(partial)
    partial.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
