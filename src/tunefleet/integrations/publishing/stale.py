"""What of an earlier model goes when another is published over it: its weights would be read beside the new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Final

_WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")


def stale(there: Iterable[str], new: Collection[str]) -> list[str]:
    """Return the files of a place that are weights of an earlier model; whatever else lies there stays.

    Args:
        there: Paths below the place.
        new: Paths of what is published.
    """
    if not _weights(new):
        return []
    return [name for name in _weights(there) if name not in new]


def _weights(names: Iterable[str]) -> list[str]:
    # Only at the root: what lies in folders is another model, such as a checkpoint.
    return sorted(name for name in names if "/" not in name and any(fnmatchcase(name, each) for each in _WEIGHTS))
