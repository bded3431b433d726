"""Sweeps and their trials in every database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from tunefleet.db import Database
from tunefleet.db.repositories import sweeps
from tunefleet.db.repositories.sweeps import SweepRow, TrialRow
from tunefleet.errors import StoreError


def _sweep(connection: Connection, id_: str, **more: Any) -> SweepRow:
    values = {
        "id": id_, "project": "default", "name": id_, "owner": "ada", "status": "running", "spec": "{}", "document": "",
        "inputs": "{}", "created_at": 1.0,
    }  # fmt: skip
    return sweeps.insert_one(connection, {**values, **more})


def _trial(seq: int, number: int) -> TrialRow:
    return TrialRow(seq, number, "running", "task-1", "{}", "{}", "[]", None, None, 0.0, None, 1.0, None)


def test_a_sweep_is_found_changed_and_removed(database: Database) -> None:
    first = database.write(lambda connection: _sweep(connection, "sweep-aa", idempotency_key="k")).result()
    second = database.write(lambda connection: _sweep(connection, "sweep-ab", status="completed")).result()

    def read(connection: Connection) -> None:
        assert sweeps.active(connection) == [first]
        assert sweeps.page(connection, project="default", limit=9) == [second, first]
        assert sweeps.page(connection, project="default", limit=9, before=second.seq, statuses=["running"]) == [first]
        assert sweeps.page(connection, project="other", limit=9) == []
        assert sweeps.by_prefix(connection, "sweep-a", "default", 9) == [first, second]
        assert sweeps.by_prefix(connection, "sweep-a", "other", 9) == []
        assert sweeps.by_idempotency_key(connection, project="default", owner="ada", key="k") == first

    database.read(read).result()
    changed = database.write(lambda connection: sweeps.change(connection, first, {"status": "stopping"})).result()
    assert database.read(sweeps.active).result() == [changed]
    database.write(lambda connection: sweeps.delete_one(connection, first.seq)).result()
    assert database.read(sweeps.active).result() == []


def test_a_number_is_one_trial_and_a_changed_one_is_read_back(database: Database) -> None:
    row = database.write(lambda connection: _sweep(connection, "sweep-aa")).result()
    for number in (0, 1):
        trial = _trial(row.seq, number)
        database.write(lambda connection, trial=trial: sweeps.add_trial(connection, trial)).result()
    with pytest.raises(StoreError):
        database.write(lambda connection: sweeps.add_trial(connection, _trial(row.seq, 1))).result()
    changed = _trial(row.seq, 1)._replace(state="completed", value=0.5, steps=8, gpu_s=2.5, finished_at=3.0)
    database.write(lambda connection: sweeps.store_trials(connection, [changed])).result()
    assert database.read(lambda connection: sweeps.trials(connection, [row.seq])).result() == {
        row.seq: [_trial(row.seq, 0), changed]
    }
