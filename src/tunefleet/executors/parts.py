"""Which part of a list a task works on whose whole was spread over workers (`spec.shard`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def part_of(items: Sequence[T], spec: Mapping[str, Any]) -> list[T]:
    """Return the items that are a task's own, in their order; all of them if it is no part.

    Contiguous parts lie one behind the other and differ by one item at most, so that their results, one after the
    other, are the whole's.

    Args:
        items: Those of the whole task.
        spec: The task's spec; `shard` says which part (`index`, from 0) of how many (`total`) it is;
            not `contiguous`: every `total`-th item.
    """
    shard = spec.get("shard")
    if not isinstance(shard, Mapping):
        return list(items)
    index, total = int(shard["index"]), int(shard["total"])
    if not shard.get("contiguous", True):
        return list(items[index::total])
    return list(items[len(items) * index // total : len(items) * (index + 1) // total])
