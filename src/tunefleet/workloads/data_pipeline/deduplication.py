"""The `dedupe` step: rows equal to an earlier one, exactly or nearly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tunefleet import errors
from tunefleet.errors import MachineError
from tunefleet.spec.tasks.data_steps import DedupeSpec, NearSpec
from tunefleet.workloads.data_pipeline.row_types import Row, value_of

_DIGEST_BYTES = 16


class Duplicates:
    """Remembers the rows it has seen: 16 bytes per row, and for near duplicates the hashes of word groups."""

    def __init__(self, wanted: DedupeSpec) -> None:
        self._wanted = wanted
        self._seen: set[bytes] = set()
        self._near = None if wanted.near is None else _Near(wanted.near)
        self.exact = 0
        self.near = 0

    def is_new(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row is new, and remember it."""
        columns = self._wanted.columns or tuple(sorted(values))
        compared = [value_of(values, column) for column in columns]
        if self._wanted.normalise:
            compared = [_normal(value) for value in compared]
        # Rows with other columns must not be equal because their values are.
        named = compared if self._wanted.columns else [columns, compared]
        digest = hashlib.blake2b(orjson.dumps(named, option=orjson.OPT_SORT_KEYS), digest_size=_DIGEST_BYTES).digest()
        if digest in self._seen:
            self.exact += 1
            return False
        if self._near is not None and not self._near.is_new(" ".join(map(_plain, compared)), digest.hex()):
            self.near += 1
            return False
        self._seen.add(digest)
        return True


def same_rows(rows: Iterable[Row]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the group number of each row among the distinct rows, by first occurrence, and the number of groups.

    A digest has 64 bits, so that a row takes 8 bytes. Two rows that share one by chance only stay in one part.
    """
    digests = np.fromiter((_digest(row.values) for row in rows), dtype=np.uint64)
    _, firsts, groups = np.unique(digests, return_index=True, return_inverse=True)
    places = np.empty(len(firsts), dtype=np.int64)
    places[np.argsort(firsts)] = np.arange(len(firsts))
    return places[groups], len(firsts)


def _digest(values: Mapping[str, Any]) -> int:
    content = orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


class _Near:
    def __init__(self, wanted: NearSpec) -> None:
        if find_spec("datasketch") is None:
            raise MachineError(
                "Near duplicates need datasketch, which is not installed.",
                hint=f"Install it on the worker: {errors.install_command('data')}; or omit `near`.",
            )
        from datasketch import MinHashLSH

        self._wanted = wanted
        self._index = MinHashLSH(threshold=wanted.threshold, num_perm=wanted.permutations)

    def is_new(self, text: str, key: str) -> bool:
        from datasketch import MinHash

        words, size = text.lower().split(), self._wanted.ngram
        groups = {" ".join(words[at : at + size]).encode() for at in range(max(1, len(words) - size + 1))}
        sketch = MinHash(num_perm=self._wanted.permutations)
        sketch.update_batch(sorted(groups))
        if self._index.query(sketch):
            return False
        # Exact duplicates have been filtered out before, so the key is new.
        self._index.insert(key, sketch, check_duplication=False)
        return True


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, list):
        return [_normal(each) for each in value]
    return {name: _normal(each) for name, each in value.items()} if isinstance(value, dict) else value


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
