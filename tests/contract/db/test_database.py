"""One writer with group commit, readers on snapshots: the same of each store."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from sqlalchemy import insert, select

from tests.contract.db.conftest import Opener
from tunefleet.db import Connection, Database, after_commit, undone_if_failed, wake
from tunefleet.db.engine.writer import MAX_GROUP
from tunefleet.db.tables.core import meta
from tunefleet.errors import ConflictError, StoreError


def put(name: str, *, value: str = "") -> object:
    def operation(connection: Connection) -> str:
        connection.execute(insert(meta).values(name=name, value=value))
        wake(connection, name)
        return name

    return operation


def names(connection: Connection) -> set[str]:
    return set(connection.execute(select(meta.c.name)).scalars())


def held(database: Database) -> tuple[threading.Event, Future[None]]:
    """Keep the writer busy, so that what follows makes one group."""
    begun, gate = threading.Event(), threading.Event()

    def operation(_: Connection) -> None:
        begun.set()
        gate.wait(30)

    done = database.write(operation)
    assert begun.wait(30)
    return gate, done


def test_an_operation_is_committed_when_its_result_is_there(database: Database) -> None:
    assert database.write(put("a")).result(30) == "a"
    assert database.read(names).result(30) == {"a"}


def test_what_waits_is_committed_together(database: Database, woken: list[frozenset[str]]) -> None:
    gate, busy = held(database)
    done = [database.write(put(f"n{number}")) for number in range(10)]
    gate.set()
    assert [future.result(30) for future in done] == [f"n{number}" for number in range(10)]
    busy.result(30)
    assert woken == [frozenset(f"n{number}" for number in range(10))]


def test_a_group_has_an_upper_bound(database: Database, woken: list[frozenset[str]]) -> None:
    gate, busy = held(database)
    done = [database.write(put(f"n{number}")) for number in range(MAX_GROUP + 5)]
    gate.set()
    for future in (busy, *done):
        future.result(30)
    assert [len(topics) for topics in woken] == [MAX_GROUP, 5]


def test_one_failure_in_a_group_leaves_the_others(database: Database, woken: list[frozenset[str]]) -> None:
    runs: list[str] = []

    def refuse(connection: Connection) -> None:
        runs.append("refused")
        connection.execute(insert(meta).values(name="half", value=""))
        wake(connection, "half")
        raise ConflictError("No.")

    gate, _ = held(database)
    before, bad, after = database.write(put("before")), database.write(refuse), database.write(put("after"))
    gate.set()
    assert before.result(30) == "before"
    assert after.result(30) == "after"
    with pytest.raises(ConflictError, match="No"):
        bad.result(30)
    assert database.read(names).result(30) == {"before", "after"}
    # It ran once with the group and once alone; what it wanted to wake stayed asleep.
    assert runs == ["refused", "refused"]
    assert woken == [frozenset({"before"}), frozenset({"after"})]


def test_a_part_that_fails_is_undone_and_the_rest_of_the_operation_stays(
    database: Database, woken: list[frozenset[str]]
) -> None:
    ran: list[str] = []

    def part(connection: Connection, name: str, error: Exception | None) -> None:
        with undone_if_failed(connection):
            connection.execute(insert(meta).values(name=name, value=""))
            wake(connection, name)
            after_commit(connection, lambda: ran.append(name))
            if error is not None:
                raise error

    def operation(connection: Connection) -> None:
        part(connection, "first", None)
        with pytest.raises(ValueError, match="poison"):
            part(connection, "second", ValueError("poison"))
        with pytest.raises(StoreError, match="rejected an operation"):
            part(connection, "first", None)  # the database's own errors are told apart
        part(connection, "third", None)

    database.write(operation).result()
    assert {"first", "third"} <= database.read(names).result()
    assert "second" not in database.read(names).result()
    database.write(lambda _: None).result()  # behind what follows the commit
    assert ran == ["first", "third"]
    assert woken == [frozenset({"first", "third"})]


def test_what_follows_a_commit_runs_once_and_only_then(database: Database) -> None:
    done: list[str] = []

    def good(connection: Connection) -> None:
        after_commit(connection, lambda: done.append("good"))

    def bad(connection: Connection) -> None:
        after_commit(connection, lambda: done.append("bad"))
        raise ConflictError("No.")

    gate, _ = held(database)
    futures = [database.write(good), database.write(bad), database.write(good)]
    assert done == []
    gate.set()
    futures[2].result(30)
    assert isinstance(futures[1].exception(30), ConflictError)
    assert done == ["good", "good"]


def test_a_follow_up_that_fails_harms_nobody(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    def operation(connection: Connection) -> str:
        after_commit(connection, lambda: 1 / 0)
        return "stored"

    assert database.write(operation).result(30) == "stored"
    assert database.write(put("next")).result(30) == "next"
    assert "ZeroDivisionError" in caplog.text


def test_a_cancelled_operation_is_left_out(database: Database) -> None:
    gate, _ = held(database)
    unwanted, wanted = database.write(put("unwanted")), database.write(put("wanted"))
    assert unwanted.cancel()
    gate.set()
    wanted.result(30)
    assert database.read(names).result(30) == {"wanted"}


def test_a_reader_sees_a_snapshot_and_cannot_write(database: Database) -> None:
    def look(connection: Connection) -> tuple[set[str], set[str]]:
        first = names(connection)
        database.write(put("meanwhile")).result(30)
        return first, names(connection)

    assert database.read(look).result(30) == (set(), set())
    with pytest.raises(StoreError, match="is read-only"):
        database.read(put("x")).result(30)


def test_what_is_queued_at_the_end_is_still_written(another: Opener) -> None:
    database = another()
    futures = [database.write(put(f"n{number}")) for number in range(100)]
    database.close()
    assert all(future.done() for future in futures)
    with pytest.raises(StoreError, match="closed"):
        database.write(put("late"))
    assert len(another().read(names).result(30)) == 100
