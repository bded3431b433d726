"""How much of a model has arrived from the hub while a job loads it, as progress that people see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_MB: Final = 1_000_000
_LOOK_S: Final = 1.0
_IDLE_LOOKS: Final = 10
_WEIGHTS: Final = (".safetensors", ".bin")
"""Ends of the names of weights: of the first of these that a repository has, all files are fetched."""
_SMALL: Final = (".json", ".txt", ".model", ".jinja")
_tell: list[Callable[..., None]] = []
_watched: set[str] = set()


def tell(progress: Callable[..., None]) -> None:
    """Say once, in a job's process, where arrivals are told: `Journal.progress`."""
    _tell[:] = [progress]


def wanted() -> bool:
    """Whether anybody is told."""
    return bool(_tell)


def watch(name: str, sizes: Mapping[str, int], cache: Path) -> None:
    """Tell from now on how much of a model has arrived, in a thread that ends by itself; once for each model."""
    if not _tell or name in _watched:
        return
    _watched.add(name)
    folder = cache / f"models--{name.replace('/', '--')}" / "blobs"
    arguments = folder, loaded_bytes(sizes), _tell[-1]
    threading.Thread(target=_follow, args=arguments, name="arrivals", daemon=True).start()


def loaded_bytes(sizes: Mapping[str, int]) -> int:
    """Return how many bytes loading a model fetches: its weights of one kind, and what is small."""
    weights = next((end for end in _WEIGHTS if any(name.endswith(end) for name in sizes)), None)
    ends = _SMALL if weights is None else (weights, *_SMALL)
    return sum(size for name, size in sizes.items() if name.endswith(ends))


def _follow(folder: Path, total: int, progress: Callable[..., None]) -> None:
    idle, before = 0, _bytes_in(folder)
    while before < total and idle < _IDLE_LOOKS:
        time.sleep(_LOOK_S)
        done = _bytes_in(folder)
        idle = idle + 1 if done == before else 0
        if done != before:
            progress(f"fetching {min(done, total) // _MB:,} of {-(-total // _MB):,} MB")
        before = done


def _bytes_in(folder: Path) -> int:
    """Return how many bytes lie in a folder of the cache, those of unfinished files too."""
    found = 0
    for path in folder.glob("*"):
        with suppress(OSError):  # renamed meanwhile
            found += path.stat().st_size
    return found
