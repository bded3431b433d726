"""The workers' rows: the included GSM8K problems, split among four workers by the first operation of the solution.

A worker's part is disjoint from the others' and one-sided: ada's problems begin with a sum, dan's with a division. All
parts are of one size, so that each worker counts alike. What is measured on is held out from all of them, and mixed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from tunefleet.workloads import assets

OPERATIONS = {"ada": "+", "ben": "-", "cleo": "*", "dan": "/"}
"""The workers, and the operation that their problems begin with."""
WORKERS = tuple(OPERATIONS)
PART_ROWS = 32
"""So few that a worker alone learns its own by heart."""
Row = dict[str, Any]

_FIRST = re.compile(r"<<-?[\d.]+\s*([-+*/])")
"""GSM8K writes each calculation of a solution as `<<48/2=24>>`."""


def operation(answer: str) -> str | None:
    """Return the first operation of a worked solution; None if there is no simple one."""
    found = _FIRST.search(answer)
    return found.group(1) if found else None


def part(worker: str) -> list[Row]:
    """Return a worker's rows, always the same and in the same order."""
    mine = [row for row in _read("train") if operation(row["answer"]) == OPERATIONS[worker]]
    return [_as_row(row) for row in random.Random(0).sample(mine, PART_ROWS)]


def all_parts() -> list[Row]:
    """Return the combined rows of all workers."""
    return [row for worker in WORKERS for row in part(worker)]


def held_out(count: int) -> list[Row]:
    """Return the first rows of the test split, of every kind; no worker trains on them."""
    return [_as_row(row) for row in list(_read("test"))[:count]]


def _read(split: str) -> Iterator[Row]:
    folder = assets.locate("builtin:gsm8k", "dataset")
    for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _as_row(row: Row) -> Row:
    return {"prompt": row["question"] + "\n", "completion": row["answer"]}
