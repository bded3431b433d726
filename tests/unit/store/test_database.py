"""One writer with group commit, readers on snapshots, and files that are refused."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Select, create_engine, insert, select, text

from tunefleet.errors import ConflictError, StoreError
from tunefleet.store import (
    Connection,
    Database,
    after_commit,
    attempts,
    migrate,
    queue,
    training,
    undone_if_failed,
    wake,
)
from tunefleet.store.folderlock import FolderLock
from tunefleet.store.tables import meta, metadata
from tunefleet.store.writer import MAX_GROUP


@pytest.fixture
def woken() -> list[frozenset[str]]:
    return []


@pytest.fixture
def database(tmp_path: Path, woken: list[frozenset[str]]) -> Iterator[Database]:
    opened = Database.open(tmp_path / "test.db", synchronous="NORMAL", on_wake=woken.append)
    yield opened
    opened.close()


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
        gate.wait(10)

    done = database.write(operation)
    assert begun.wait(10)
    return gate, done


def test_an_operation_is_committed_when_its_result_is_there(database: Database) -> None:
    assert database.write(put("a")).result(5) == "a"
    assert database.read(names).result(5) == {"a"}


def test_what_waits_is_committed_together(database: Database, woken: list[frozenset[str]]) -> None:
    gate, busy = held(database)
    done = [database.write(put(f"n{number}")) for number in range(10)]
    gate.set()
    assert [future.result(5) for future in done] == [f"n{number}" for number in range(10)]
    busy.result(5)
    assert woken == [frozenset(f"n{number}" for number in range(10))]


def test_a_group_has_an_upper_bound(database: Database, woken: list[frozenset[str]]) -> None:
    gate, busy = held(database)
    done = [database.write(put(f"n{number}")) for number in range(MAX_GROUP + 5)]
    gate.set()
    for future in (busy, *done):
        future.result(5)
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
    assert before.result(5) == "before"
    assert after.result(5) == "after"
    with pytest.raises(ConflictError, match="No"):
        bad.result(5)
    assert database.read(names).result(5) == {"before", "after"}
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
        with pytest.raises(StoreError, match="refused an operation"):
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
    futures[2].result(5)
    assert isinstance(futures[1].exception(5), ConflictError)
    assert done == ["good", "good"]


def test_a_follow_up_that_fails_harms_nobody(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    def operation(connection: Connection) -> str:
        after_commit(connection, lambda: 1 / 0)
        return "stored"

    assert database.write(operation).result(5) == "stored"
    assert database.write(put("next")).result(5) == "next"
    assert "ZeroDivisionError" in caplog.text


def test_a_cancelled_operation_is_left_out(database: Database) -> None:
    gate, _ = held(database)
    unwanted, wanted = database.write(put("unwanted")), database.write(put("wanted"))
    assert unwanted.cancel()
    gate.set()
    wanted.result(5)
    assert database.read(names).result(5) == {"wanted"}


def test_a_reader_sees_a_snapshot_and_cannot_write(database: Database) -> None:
    def look(connection: Connection) -> tuple[set[str], set[str]]:
        first = names(connection)
        database.write(put("meanwhile")).result(5)
        return first, names(connection)

    assert database.read(look).result(5) == (set(), set())
    with pytest.raises(StoreError, match="cannot be written"):
        database.read(put("x")).result(5)


def test_what_is_queued_at_the_end_is_still_written(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "test.db")
    futures = [database.write(put(f"n{number}")) for number in range(100)]
    database.close()
    assert all(future.done() for future in futures)
    with pytest.raises(StoreError, match="closed"):
        database.write(put("late"))
    again = Database.open(tmp_path / "test.db")
    assert len(again.read(names).result(5)) == 100
    again.close()


def test_a_reopened_database_needs_no_alembic(tmp_path: Path) -> None:
    Database.open(tmp_path / "test.db").close()
    code = (
        "import sys, pathlib; from tunefleet.store import Database; "
        f"Database.open(pathlib.Path({str(tmp_path / 'test.db')!r})).close(); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_migrations_make_the_tables_that_the_code_works_with(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    assert database.write(differences).result(10) == []
    script = ScriptDirectory(str(migrate.FOLDER))
    assert script.get_current_head() == migrate.HEAD


def test_what_was_registered_survives_the_upgrade_that_drops_a_column(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(migrate.FOLDER))
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        connection.execute(
            text(
                "INSERT INTO training_jobs (task_id, registered, body, resumed_from, checkpoint, updates) "
                "VALUES ('task-1', 1, '{}', NULL, '/ckpt', '[]')"
            )
        )
    engine.dispose()
    opened = Database.open(path)
    try:
        kept = opened.write(lambda connection: training.job(connection, "task-1")).result(10)
    finally:
        opened.close()
    assert kept == training.JobRow("task-1", "{}", None, "/ckpt", "[]")


def test_the_partial_indexes_answer_what_placement_asks(database: Database) -> None:
    def plan(connection: Connection, query: Select[Any]) -> str:
        compiled = query.compile(dialect=connection.dialect)
        values = tuple(compiled.params[name] for name in compiled.positiontup or ())
        return " ".join(str(row) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values))

    def operation(connection: Connection) -> tuple[str, str]:
        first = queue._FIRST.params(key="k", now=1.0, count=5)
        mine = attempts._OF_WORKER.params(worker_id="w")
        return plan(connection, first), plan(connection, mine)

    first, mine = database.read(operation).result(5)
    assert "ix_tasks_queue" in first
    assert "TEMP B-TREE" not in first
    assert "ix_attempts_open" in mine


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"this is no database, but some text that is long enough" * 10, "damaged, or no database"),
        (b"SQLite format 3\0" + b"\xff" * 4096, "database"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=message) as caught:
        Database.open(path)
    assert caught.value.hint
    assert path.read_bytes() == content


def test_a_database_with_a_broken_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    Database.open(path).close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xaa" * (size - 4096))
    with pytest.raises(StoreError, match=r"test\.db is damaged") as caught:
        Database.open(path)
    assert "***" not in caught.value.message
    assert "backup" in (caught.value.hint or "")


def test_one_broken_page_among_whole_ones_is_told_in_our_words(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    Database.open(path).close()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 4096)
        file.write(b"\xaa" * 4096)
    with pytest.raises(StoreError, match=r"test\.db is damaged") as caught:
        Database.open(path)
    assert "***" not in caught.value.message
    assert "backup" in (caught.value.hint or "")


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE things (id INTEGER)")
    other.close()
    with pytest.raises(StoreError, match="another program"):
        Database.open(path)
    marked = tmp_path / "marked.db"
    with sqlite3.connect(marked) as other:
        other.execute("PRAGMA application_id = 12345")
        other.execute("CREATE TABLE things (id INTEGER)")
    other.close()
    with pytest.raises(StoreError, match="another program"):
        Database.open(marked)


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    Database.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match="newer version"):
        Database.open(path)


def test_other_databases_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="mysql database cannot be used"):
        Database.open("mysql://localhost/x")
    Database.open(f"sqlite:///{tmp_path / 'url.db'}").close()
    assert (tmp_path / "url.db").exists()
    with pytest.raises(StoreError):
        Database.open(tmp_path)


def test_only_this_user_can_read_the_database(tmp_path: Path) -> None:
    path = tmp_path / "data" / "test.db"
    FolderLock.take(path.parent).release()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for _ in range(2):  # a new one, and one that an older version made
        opened = Database.open(path)
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("test.db*")} == {0o600}
        opened.close()
        path.chmod(0o644)


def test_one_process_a_data_folder(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path)
    code = (
        "import pathlib, sys; from tunefleet.errors import StoreError\n"
        "from tunefleet.store.folderlock import FolderLock\n"
        f"try: FolderLock.take(pathlib.Path({str(tmp_path)!r}))\n"
        "except StoreError as error: sys.exit(str(error))\n"
    )
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"in use by process {os.getpid()}" in refused.stderr
    assert "--data" in refused.stderr
    lock.release()
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        FolderLock.take(tmp_path / "file" / "data")
    with pytest.raises(StoreError, match="is a file, not a folder"):
        FolderLock.take(tmp_path / "file")
