"""Reports the download progress of Hub models while a job loads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_MB: Final = 1_000_000
_POLL_S: Final = 1.0
# Polls without progress after which watching ends: the download has failed or needs fewer files than expected.
_MAX_IDLE_POLLS: Final = 10
# Suffixes of weight files in order of preference: loading fetches all files with the first suffix that exists.
_WEIGHTS: Final = (".safetensors", ".bin")
_SMALL: Final = (".json", ".txt", ".model", ".jinja")
_reporters: list[Callable[..., None]] = []
_watched: set[str] = set()


def report_to(progress: Callable[..., None]) -> None:
    """Set the function that download progress is reported to, usually `Journal.progress`."""
    _reporters[:] = [progress]


def wanted() -> bool:
    """Return whether download progress is reported."""
    return bool(_reporters)


def watch(name: str, sizes: Mapping[str, int], cache: Path) -> None:
    """Report the download progress of a model from a background thread; does nothing if it is watched already."""
    if not _reporters or name in _watched:
        return
    _watched.add(name)
    # The size of the cache folder is polled: the download happens inside the libraries, without a callback.
    folder = cache / f"models--{name.replace('/', '--')}" / "blobs"
    arguments = folder, loaded_bytes(sizes), _reporters[-1]
    threading.Thread(target=_follow, args=arguments, name="arrivals", daemon=True).start()


def loaded_bytes(sizes: Mapping[str, int]) -> int:
    """Return how many bytes loading a model downloads: weights in one format, and small files."""
    weights = next((end for end in _WEIGHTS if any(name.endswith(end) for name in sizes)), None)
    ends = _SMALL if weights is None else (weights, *_SMALL)
    return sum(size for name, size in sizes.items() if name.endswith(ends))


def _follow(folder: Path, total: int, progress: Callable[..., None]) -> None:
    idle, before = 0, _bytes_in(folder)
    while before < total and idle < _MAX_IDLE_POLLS:
        time.sleep(_POLL_S)
        done = _bytes_in(folder)
        idle = idle + 1 if done == before else 0
        if done != before:
            progress(f"fetching {min(done, total) // _MB:,} of {-(-total // _MB):,} MB")
        before = done


def _bytes_in(folder: Path) -> int:
    """Return the size of a cache folder, including unfinished files."""
    found = 0
    for path in folder.glob("*"):
        with suppress(OSError):  # renamed in the meantime
            found += path.stat().st_size
    return found
