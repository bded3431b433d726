"""Lists models and datasets in the Hugging Face cache of this machine, by folder names only."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

# Limit of reported models and of reported datasets; the most recently changed ones are kept.
MAX_NAMES: Final = 1000


def cached(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the models and of the datasets in a hub cache, each sorted."""
    found: dict[str, list[tuple[float, str]]] = {"models": [], "datasets": []}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                kind, *name = entry.name.split("--")
                if kind in found and name and _has_snapshot(entry.path):
                    found[kind].append((entry.stat().st_mtime, "/".join(name)))
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        logger.warning("Could not read the cache %s; its contents are not reported: %s", folder, error)
        return (), ()
    models, datasets = (_newest(each) for each in found.values())
    return models, datasets


def _newest(found: list[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(sorted(name for _, name in sorted(found, reverse=True)[:MAX_NAMES]))


def _has_snapshot(path: str) -> bool:
    """Whether a download has completed: an interrupted one leaves blobs and no snapshot."""
    try:
        with os.scandir(Path(path) / "snapshots") as snapshots:
            return any(True for _ in snapshots)
    except OSError:
        return False
