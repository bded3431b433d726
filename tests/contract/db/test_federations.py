"""Rows of federations: what a round and a worker have once only, and claims by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.contract.db.conftest import Opener
from tunefleet.db import Connection, Database
from tunefleet.db.federations import federation_chunks, federation_updates, federation_versions, federations, rounds
from tunefleet.db.federations.federation_chunks import ChunkRow
from tunefleet.db.federations.federation_updates import UpdateRow
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federations import MemberRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.errors import IllegalTransition, StoreError
from tunefleet.lifecycle.round import RoundReason

T = TypeVar("T")


def write(database: Database, operation: Callable[[Connection], T]) -> T:
    return database.write(operation).result(20)


def federation(id_: str = "fed-1", **more: Any) -> dict[str, Any]:
    values = {
        "id": id_, "project": "default", "name": "f", "owner": "me", "status": "running", "spec": "{}",
        "callback_secret": "s", "version": 0, "round": 0, "created_at": 1.0,
    }  # fmt: skip
    return {**values, **more}


def a_round(seq: int, number: int = 1, status: str = "aggregating", **more: Any) -> RoundRow:
    row = RoundRow(seq, number, status, None, None, None, 1.0, None, None, None, None, 0.0, 0, None, None)
    return row._replace(**more)


def an_update(seq: int, worker: str = "w1", number: int | None = 1, state: str = "counted") -> UpdateRow:
    return UpdateRow(
        seq, worker, number, state, None, 1, 1, None, "a" * 64, "a" * 64, "v", "{}", "{}", "fp32", 1, None, None,
        None, None, 1.0, None,
    )  # fmt: skip


def a_version(seq: int, number: int, round_: int | None) -> VersionRow:
    return VersionRow(seq, number, round_, None, f"art-{number}", "fedavg", "[]", "b" * 64, 1, None, "{}", "{}", 1.0)


def test_a_federation_is_found_by_id_and_by_number_in_its_project(database: Database) -> None:
    def operation(connection: Connection) -> None:
        row = federations.insert_one(connection, federation())
        assert federations.find(connection, "default", "fed-1") == row
        assert federations.find(connection, "default", str(row.seq), lock=True) == row
        assert federations.find(connection, "default", "٤٢") is None
        assert federations.find(connection, "default", "9" * 30) is None
        assert federations.find(connection, "elsewhere", "fed-1") is None

    write(database, operation)


@pytest.mark.parametrize("state", ["counted", "waiting"])
def test_a_worker_has_one_update_that_counts_in_a_round_and_one_that_waits(database: Database, state: str) -> None:
    number = 1 if state == "counted" else None

    def operation(connection: Connection) -> None:
        for _ in range(2):
            federation_updates.insert_one(connection, an_update(1, number=number, state=state))

    with pytest.raises(StoreError, match="rejected an operation"):
        write(database, operation)
    write(database, lambda connection: federation_updates.insert_one(connection, an_update(1, state="superseded")))
    write(database, lambda connection: federation_updates.insert_one(connection, an_update(1)))


def test_a_round_has_one_version_and_a_rollback_none(database: Database) -> None:
    write(database, lambda connection: federation_versions.insert_one(connection, a_version(1, 1, 1)))
    with pytest.raises(StoreError, match="rejected an operation"):
        write(database, lambda connection: federation_versions.insert_one(connection, a_version(1, 2, 1)))

    def twice(connection: Connection) -> None:
        for number in (2, 3):
            federation_versions.insert_one(connection, a_version(1, number, None))

    write(database, twice)


def test_of_many_who_claim_a_round_from_several_processes_one_gets_it(database: Database, another: Opener) -> None:
    write(database, lambda connection: rounds.insert_one(connection, a_round(1)))
    others = [database, *(another() for _ in range(3))]
    with ThreadPoolExecutor(8) as threads:
        for turn in range(5):
            now = 100.0 * turn
            row = database.read(lambda connection: rounds.get(connection, 1, 1)).result(20)
            assert row is not None

            def claim(index: int, row: RoundRow = row, now: float = now) -> RoundRow | None:
                return write(
                    others[index % 4],
                    lambda connection: rounds.claim(connection, row, holder=f"h{index}", now=now, until=now + 50.0),
                )

            taken = [each for each in threads.map(claim, range(8)) if each is not None]
            assert len(taken) == 1
            assert (taken[0].tries, taken[0].lease_until) == (turn + 1, now + 50.0)


def test_a_round_moves_for_its_holder_only_and_from_where_it_was_seen(database: Database) -> None:
    def operation(connection: Connection) -> None:
        rounds.insert_one(connection, a_round(1))
        row = rounds.claim(connection, a_round(1), holder="me", now=1.0, until=9.0)
        assert row is not None
        assert rounds.claim(connection, row, holder="you", now=8.0, until=20.0) is None
        assert rounds.move(connection, row, RoundReason.AGGREGATED, 2.0, holder="you") is None
        moved = rounds.move(connection, row, RoundReason.AGGREGATED, 2.0, holder="me", values={"result": "{}"})
        assert moved is not None
        assert moved == rounds.get(connection, 1, 1)
        assert rounds.move(connection, row, RoundReason.AGGREGATED, 2.0, holder="me") is None, "it was seen before"
        assert rounds.renew(connection, moved, holder="me", until=30.0)
        assert not rounds.renew(connection, moved, holder="you", until=30.0)
        assert rounds.held_by(connection, 29.0) == {"me"}
        assert rounds.held_by(connection, 30.0) == set()
        done = rounds.move(connection, moved, RoundReason.VERSION_STORED, 3.0, holder="me", values={"version": 1})
        assert done is not None
        assert (done.status, done.holder, done.finished_at) == ("published", None, 3.0)
        assert not rounds.release(connection, moved, holder="me", until=0.0, error=None)
        with pytest.raises(IllegalTransition):
            rounds.move(connection, done, RoundReason.AGGREGATED, 4.0)

    write(database, operation)


def test_closing_a_round_frees_it_and_counts_its_tries_anew(database: Database) -> None:
    def operation(connection: Connection) -> None:
        seen = a_round(1, status="collecting", tries=4, holder="old", lease_until=99.0)
        rounds.insert_one(connection, seen)
        closed = rounds.move(connection, seen, RoundReason.ALL_HERE, 5.0)
        assert closed is not None
        assert (closed.holder, closed.lease_until, closed.tries, closed.closed_at) == (None, 0.0, 0, 5.0)

    write(database, operation)


def test_what_is_to_be_looked_after(database: Database) -> None:
    def operation(connection: Connection) -> None:
        running = federations.insert_one(connection, federation("fed-1"))
        paused = federations.insert_one(connection, federation("fed-2", status="paused"))
        bare = federations.insert_one(connection, federation("fed-3"))
        rounds.insert_one(connection, a_round(running.seq, 1, "published"))
        rounds.insert_one(connection, a_round(running.seq, 2, "collecting"))
        rounds.insert_one(connection, a_round(paused.seq, 1, "publishing"))
        rounds.insert_one(connection, a_round(paused.seq, 2, "sampling"))
        found = rounds.to_look_after(connection)
        assert [(row.federation_seq, row.number) for row in found] == [(running.seq, 2), (paused.seq, 1)]
        assert rounds.without_round(connection) == [bare.seq]

    write(database, operation)


def test_a_chunk_is_one_workers_until_its_lease_ends(database: Database) -> None:
    def operation(connection: Connection) -> None:
        rows = [ChunkRow(1, number, "c" * 64, 9, 3, "free", None, None, 0, None) for number in range(2)]
        federation_chunks.insert_all(connection, rows)
        first = federation_chunks.claim(connection, 1, "w1", now=0.0, until=10.0)
        second = federation_chunks.claim(connection, 1, "w2", now=0.0, until=20.0)
        assert first is not None
        assert second is not None
        assert (first.number, second.number) == (0, 1)
        assert federation_chunks.claim(connection, 1, "w3", now=9.0, until=30.0) is None
        assert federation_chunks.renew(connection, first, until=12.0)
        taken = federation_chunks.claim(connection, 1, "w3", now=12.0, until=30.0)
        assert taken is not None
        assert (taken.number, taken.worker, taken.claims) == (0, "w3", 2)
        assert not federation_chunks.renew(connection, first, until=40.0)
        assert not federation_chunks.finish(connection, 1, "w1", 0, now=13.0), "it has lost it"
        assert federation_chunks.finish(connection, 1, "w3", 0, now=13.0)
        assert federation_chunks.held(connection, 1) == {"w2": 1}
        assert federation_chunks.counts(connection, 1) == {"claimed": 1, "done": 1}

    write(database, operation)


def test_what_is_removed_is_gone_and_nothing_else(database: Database) -> None:
    def operation(connection: Connection) -> None:
        seqs = [federations.insert_one(connection, federation(f"fed-{number}")).seq for number in range(2)]
        for seq in seqs:
            federations.put_member(connection, MemberRow(seq, "w", None, 0, 0, None, None, None, None, 1.0, 1.0))
            rounds.insert_one(connection, a_round(seq))
            federation_updates.insert_one(connection, an_update(seq))
            federation_versions.insert_one(connection, a_version(seq, 1, 1))
        federations.delete_one(connection, seqs[0])
        gone, kept = seqs
        assert federations.by_seq(connection, gone) is None
        assert federations.members(connection, gone) == []
        assert rounds.newest(connection, gone, limit=9) == []
        assert federation_updates.count(connection, gone) == 0
        assert federation_versions.of_artifacts(connection, gone) == []
        assert federation_updates.count(connection, kept) == 1
        assert federation_versions.of_artifacts(connection, kept) == ["art-1"]
        assert len(federations.members(connection, kept)) == 1

    write(database, operation)
