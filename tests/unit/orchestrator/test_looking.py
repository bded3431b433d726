"""How many files of rows are looked through at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.unit.orchestrator.lab import Lab
from tunefleet.orchestrator.preflight import datasets
from tunefleet.schemas.datasets import DatasetLook


async def test_two_are_looked_through_at_once_and_all_in_the_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)
    real, looked = datasets.look, []

    def look(*args: Any, **options: Any) -> DatasetLook:
        try:
            together.wait(timeout=1.0)
        except threading.BrokenBarrierError:
            looked.append("never three")
        return real(*args, **options)

    monkeypatch.setattr(datasets, "look", look)
    rows = b'{"text": "x"}\n'
    asked = (datasets.inspect_beginning(lab.core, lab.admin, "rows.jsonl", len(rows), rows, rows=1) for _ in range(6))
    found = await asyncio.gather(*asked)
    assert [each.rows for each in found] == [1] * 6
    assert looked == ["never three"] * 6
