"""What is SQLite's alone: indexes that it chooses, and files that are refused."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, event

from tunefleet.db import Connection, Database
from tunefleet.db.engine.locks import FolderLock
from tunefleet.db.federations import federation_updates, rounds
from tunefleet.db.repositories import attempts, queue
from tunefleet.errors import StoreError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(tmp_path / "test.db", synchronous="NORMAL")
    yield opened
    opened.close()


def test_what_every_upload_asks_for_is_found_by_an_index(database: Database) -> None:
    asked: list[tuple[str, Any]] = []

    def operation(connection: Connection) -> list[list[str]]:
        event.listen(connection, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
        federation_updates.same(connection, 1, "w1", 1, "d")
        federation_updates.current(connection, 1, "w1", 1)
        federation_updates.current(connection, 1, "w1", None)
        federation_updates.counted_workers(connection, 1, 1)
        federation_updates.waiting(connection, 1)
        rounds.to_look_after(connection)
        plans = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said}", given) for said, given in asked[-6:]]
        return [[str(row[-1]) for row in plan] for plan in plans]

    plans = database.read(operation).result(20)
    for plan in plans:
        assert not [line for line in plan if line.startswith("SCAN federation_updates") and "INDEX" not in line], plan
    used = [plan[0].partition("INDEX ")[2].split()[0] for plan in plans[:5]]
    assert used == [
        "ix_federation_updates_worker", "uq_federation_updates_counted", "uq_federation_updates_waiting",
        "uq_federation_updates_counted", "uq_federation_updates_waiting",
    ]  # fmt: skip
    assert any("ix_federation_rounds_open" in line for line in plans[5]), plans[5]


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
        (b"this is no database, but some text that is long enough" * 10, "damaged, or not an SQLite database"),
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
    # Which of the two depends on the table that the last page belongs to.
    with pytest.raises(StoreError, match=r"test\.db (is damaged|has damaged pages)") as caught:
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
    with pytest.raises(StoreError, match="Unsupported database: mysql"):
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


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot use the data folder"):
        FolderLock.take(tmp_path / "file" / "data")
    with pytest.raises(StoreError, match="is a file, not a folder"):
        FolderLock.take(tmp_path / "file")
