"""Which part of a list a task works on whose whole was spread over workers (`spec.shard`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def part_of(items: Sequence[T], spec: Mapping[str, Any]) -> list[T]:
    """Return the items that are a task's own, in their order; all of them if it is no part.

    Args:
        items: Those of the whole task.
        spec: The task's spec; see `positions_of`.
    """
    return [items[at] for at in positions_of(len(items), spec)]


def positions_of(count: int, spec: Mapping[str, Any]) -> range:
    """Return where in a list the items are that are a task's own.

    Contiguous parts lie one behind the other and differ by one item at most, so that their results, one after the
    other, are the whole's.

    Args:
        count: How many items the whole task has.
        spec: The task's spec; `shard` says which part (`index`, from 0) of how many (`total`) it is;
            not `contiguous`: every `total`-th item.
    """
    shard = spec.get("shard")
    if not isinstance(shard, Mapping):
        return range(count)
    index, total = int(shard["index"]), int(shard["total"])
    if not shard.get("contiguous", True):
        return range(index, count, total)
    return range(count * index // total, count * (index + 1) // total)
