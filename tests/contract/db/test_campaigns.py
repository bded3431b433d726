"""Rows of campaigns: claims by compare-and-swap, and what is there once only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.contract.db.conftest import Opener
from tunefleet.db import Connection, Database
from tunefleet.db.campaigns import campaigns, cycles, models
from tunefleet.db.campaigns.campaigns import CampaignRow, LineRow, SpendRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.db.campaigns.models import ModelRow
from tunefleet.errors import StoreError

T = TypeVar("T")


def write(database: Database, operation: Callable[[Connection], T]) -> T:
    return database.write(operation).result(20)


def campaign(database: Database, id_: str = "camp-1", **more: Any) -> CampaignRow:
    values = {
        "id": id_, "project": "default", "name": id_, "owner": "me", "status": "active", "reason": None,
        "by_config": 0, "spec": "{}", "cycles": 0, "next_at": 0.0, "failures": 0, "holder": None, "lease_until": 0.0,
        "created_at": 1.0, "changed_at": 1.0, **more,
    }  # fmt: skip
    return write(database, lambda connection: campaigns.insert_one(connection, values))


def version(number: int, stage: str = "archived", **more: Any) -> ModelRow:
    row = ModelRow(
        "default", "me", "m", number, stage, "model", "camp-1", number, f"camp-1/{number}", None, "{}", "{}", "{}",
        None, 1.0, None,
    )  # fmt: skip
    return row._replace(**more)


def test_of_many_that_want_a_campaign_one_gets_it(database: Database, another: Opener) -> None:
    row = campaign(database)
    others = [database, *(another() for _ in range(2))]
    with ThreadPoolExecutor(6) as threads:
        for turn in range(5):

            def claim(index: int, now: float = 100.0 * turn) -> CampaignRow | None:
                return write(
                    others[index % 3],
                    lambda connection: campaigns.claim(
                        connection, row, holder=f"h{index}-{now}", now=now, until=now + 50.0
                    ),
                )

            assert len([each for each in threads.map(claim, range(6)) if each is not None]) == 1


def test_a_cycle_moves_only_from_where_it_was_seen(database: Database) -> None:
    row = CycleRow(1, 0, 0, "running", "data", 0, 0.0, None, None, 0, 0, 0, "{}", 1.0, None)
    write(database, lambda connection: cycles.insert_one(connection, row))
    moved = write(database, lambda connection: cycles.change(connection, row, {"step": "upload"}))
    assert moved is not None
    assert write(database, lambda connection: cycles.change(connection, row, {"step": "submit"})) is None
    assert database.read(lambda connection: cycles.get(connection, 1, 0)).result(5) == moved
    with pytest.raises(StoreError):
        write(database, lambda connection: cycles.insert_one(connection, row))


def test_a_campaign_is_due_when_its_first_step_is_and_not_while_it_is_held(database: Database) -> None:
    row = campaign(database, next_at=500.0)
    campaign(database, "camp-2", status="paused")

    def due() -> dict[str, float]:
        return database.read(campaigns.due).result(5)

    assert due() == {"camp-1": 500.0}
    for number, at in ((0, 300.0), (1, 200.0)):
        cycle = CycleRow(row.seq, number, 0, "running", "wait", 0, at, None, None, 0, 0, 0, "{}", 1.0, None)
        write(database, lambda connection, cycle=cycle: cycles.insert_one(connection, cycle))
    write(database, lambda connection: campaigns.change(connection, row, {"cycles": 2}))
    assert due() == {"camp-1": 200.0}
    write(database, lambda connection: campaigns.claim(connection, row, holder="h", now=0.0, until=250.0))
    assert due() == {"camp-1": 250.0}


def test_the_ledger_takes_nothing_twice(database: Database) -> None:
    entry = SpendRow(1, 0, "task", "camp-1/0", 5.0, 10.0)
    assert write(database, lambda connection: campaigns.enter_spend(connection, entry))
    assert not write(
        database, lambda connection: campaigns.enter_spend(connection, entry._replace(amount=9.0, at=11.0))
    )
    assert write(
        database, lambda connection: campaigns.enter_spend(connection, entry._replace(what="seconds", amount=2.0))
    )
    assert write(database, lambda connection: campaigns.enter_spend(connection, entry._replace(campaign_seq=2)))
    assert database.read(lambda connection: campaigns.total_spend(connection, 1)).result(5) == 7.0
    assert database.read(lambda connection: campaigns.total_spend(connection, 1, but="camp-1/0")).result(5) == 0.0


def test_a_model_has_one_promoted_version_whatever_anybody_writes(database: Database) -> None:
    write(database, lambda connection: models.insert_one(connection, version(1, "promoted")))
    with pytest.raises(StoreError):
        write(database, lambda connection: models.insert_one(connection, version(2, "promoted")))
    write(database, lambda connection: models.insert_one(connection, version(2)))
    with pytest.raises(StoreError):
        write(database, lambda connection: models.insert_one(connection, version(3, key="camp-1/2")))
    write(database, lambda connection: models.insert_one(connection, version(1, "promoted", owner="you", key="other")))


def test_a_log_keeps_about_the_newest_lines_of_each_campaign(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "_SPARE", 10)

    def talk(connection: Connection) -> None:
        for number in range(100):
            # The second one speaks seldom, and never when room is made.
            row = LineRow(2 if number % 20 == 3 else 1, 0, "data", "info", str(number), float(number))
            campaigns.add(connection, row, keep=20)

    write(database, talk)
    kept = database.read(lambda connection: campaigns.tail(connection, 1, limit=1000)).result(5)
    assert (len(kept), kept[0].text, kept[-1].text) == (20, "79", "99")
    rare = database.read(lambda connection: campaigns.after(connection, 2, 0, limit=1000)).result(5)
    assert [line.text for line in rare] == ["3", "23", "43", "63", "83"]
