"""Splits off an eval set, with equal rows on one side: a row that is trained on measures nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from tunefleet.analysis.dataset.messages import without_nulls
from tunefleet.errors import DataError
from tunefleet.workloads.data.readers import Rows, table, take

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Duplicate rows of a dataset."""

    rows: int
    shared: int

    @property
    def sentence(self) -> str | None:
        """A note for the user; None without duplicates."""
        if self.shared:
            return f"{self.shared} eval rows are also training rows: the eval loss is lower than on new rows."
        if self.rows:
            return f"{self.rows} rows are duplicates of other rows; equal rows were kept on one side of the split."
        return None


def hold_out(
    rows: Rows, fraction: float, seed: int, origin: str, columns: Collection[str]
) -> tuple[Rows, Rows, Duplicates]:
    """Split rows into a training set and an eval set; deterministic for the same seed and rows."""
    count = round(len(rows) * fraction)
    if not 0 < count < len(rows):
        raise DataError(
            f"An eval set of {fraction:g} of the {len(rows)} rows of {origin} leaves one side empty.",
            hint="Change `data.eval.fraction`, or add rows.",
        )
    groups = list(_digests(rows, columns))
    sizes = Counter(groups)
    held: set[bytes] = set()
    number = 0
    # Whole groups of equal rows are added as long as they fit, so that no row is on both sides.
    for at in np.random.default_rng(seed).permutation(len(rows)).tolist():
        group = groups[at]
        if group not in held and number + sizes[group] <= count:
            held.add(group)
            number += sizes[group]
        if number == count:
            break
    if not held:
        raise DataError(
            f"The {len(rows)} rows of {origin} are mostly equal ({len(sizes)} differ): no group of equal rows is small "
            f"enough for an eval set of {count}.",
            hint="Remove duplicates with a data task (step dedupe), or raise `data.eval.fraction`.",
        )
    kept = [at for at, group in enumerate(groups) if group in held]
    trained = [at for at, group in enumerate(groups) if group not in held]
    return take(rows, trained), take(rows, kept), Duplicates(len(rows) - len(sizes), 0)


def overlap(train: Rows, held_out: Rows, columns: Collection[str]) -> Duplicates:
    """Count the eval rows that are also trained on, and the duplicate rows."""
    known = Counter(_digests(train, columns))
    shared = sum(digest in known for digest in _digests(held_out, columns))
    return Duplicates(len(train) - len(known), shared)


def _digests(rows: Rows, columns: Collection[str]) -> Iterable[bytes]:
    """Yield a digest of each row's content in the columns, independent of the storage format."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    for row in _each(rows):
        # A table adds None for keys that only other rows have; JSON lines do not.
        content = without_nulls({name: value for name, value in row.items() if name in columns})
        yield hashlib.blake2b(orjson.dumps(content, default=repr, option=options), digest_size=16).digest()


def _each(rows: Rows) -> Iterable[Mapping[str, Any]]:
    stored = table(rows)
    if stored is None:
        return rows
    return (row for part in stored.with_format("arrow").iter(batch_size=_BATCH) for row in part.to_pylist())
