"""A backup of either store fills either store, whole or not at all."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from tests.integration.postgres.process import PostgresProcess
from tunefleet.db import Connection, Database, backup
from tunefleet.db.engine import migrate, offline
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.db.tables.core import log_chunks, meta, metadata, metric_points
from tunefleet.errors import ArtifactError, ConflictError, StoreError

NAMES = ["ä", "Z", "a", "_", "B", "ß", "z1"]


@pytest.fixture
def to(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path | str]:
    """Where an empty database of a kind is to be."""

    def place(kind: str) -> Path | str:
        if kind == "sqlite":
            return tmp_path / "to.db"
        url: str = request.getfixturevalue("postgres_empty")
        return url

    return place


def put(connection: Connection) -> None:
    connection.execute(insert(meta), [{"name": name, "value": f"{name} \U0001f600\n"} for name in NAMES])
    connection.execute(insert(log_chunks).values(task_id="t", end=3, data=b"\x00\xff\x01"))
    point = {"task_id": "t", "launch_number": 1, "seq": 1, "series": "train", "step": 1 << 40, "at": 0.1 + 0.2}
    connection.execute(insert(metric_points).values(**point, curve=1, values_json='{"loss": 1e-300}'))
    events.append(connection, [Event("made", 1.5), Event("gone", 2.5)])
    connection.execute(text("DELETE FROM events WHERE kind = 'gone'"))


def everything(target: Path | str) -> dict[str, list[Any]]:
    with offline.reading(target) as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(select(table)))
            for table in offline.tables_of(connection)
        }


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.proof)])
@pytest.mark.timeout(300)
def test_what_was_backed_up_is_there_again(
    target: Path | str, database: Database, to: Callable[[str], Path | str], tmp_path: Path, kind: str
) -> None:
    database.write(put).result(30)
    file, new = tmp_path / "fleet.zip", to(kind)
    written = backup.write(target, file)  # while the database is open and may be written
    assert file.stat().st_mode & 0o777 == 0o600
    assert (written.revision, written.rows) == (migrate.HEAD, 11)  # ten, and the project that every database has
    restored = backup.restore(file, new, tmp_path / "elsewhere")
    assert restored == written
    assert everything(new) == everything(target)
    with_server = Database.open(new)
    try:
        # A number that was given out once is not given again, and lists sort alike.
        with_server.write(lambda connection: events.append(connection, [Event("next", 3.0)])).result(30)
        assert with_server.read(events.last_id).result(30) == 3
        ordered = with_server.read(lambda c: list(c.execute(select(meta.c.name).order_by(meta.c.name)).scalars()))
        assert ordered.result(30) == sorted(NAMES)
    finally:
        with_server.close()


def test_a_backup_is_one_moment(target: Path | str, database: Database, tmp_path: Path) -> None:
    def more(name: str) -> None:
        if name == "meta":
            database.write(lambda c: c.execute(insert(meta).values(name="late", value=""))).result(30)

    database.write(put).result(30)
    manifest = backup.write(target, tmp_path / "fleet.zip", progress=more)
    assert manifest.tables["meta"].rows == len(NAMES)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.proof)])
def test_an_older_backup_is_migrated(
    target: Path | str,
    database: Database,
    to: Callable[[str], Path | str],
    tmp_path: Path,
    kind: str,
    next_revision: Callable[[], str],
) -> None:
    database.write(put).result(30)
    file, new = tmp_path / "old.zip", to(kind)
    revision = backup.write(target, file).revision
    assert next_revision() != revision
    assert backup.restore(file, new, tmp_path / "data").revision == revision
    found = offline.status_of(new)
    assert (found.current, found.tables, found.rows) == (True, len(metadata.tables) + 1, 10)
    moved, was = everything(new), everything(target)
    # The next revision has filled a column of `meta`, and made a table.
    assert moved["meta"] == [(*row, len(row[1])) for row in was["meta"]]
    assert {**moved, "meta": was["meta"]} == {**was, "labels": []}


def filled(target: Path | str, tmp_path: Path) -> tuple[Path, Path | str]:
    """Return a backup, and the database that it was taken from."""
    database = Database.open(target)
    database.write(put).result(30)
    database.close()
    file = tmp_path / "fleet.zip"
    backup.write(target, file)
    return file, target


@pytest.fixture
def full(target: Path | str, tmp_path: Path) -> tuple[Path, Path | str]:
    return filled(target, tmp_path)


def test_a_database_with_rows_is_left_alone_unless_forced(full: tuple[Path, Path | str], tmp_path: Path) -> None:
    file, target = full
    with offline.writing(target, tmp_path) as connection:
        connection.execute(text("INSERT INTO meta (name, value) VALUES ('new', 'x')"))
    before = everything(target)
    with pytest.raises(ConflictError, match="is not empty: it has 11 rows") as caught:
        backup.restore(file, target, tmp_path)
    assert "--force" in str(caught.value)
    assert everything(target) == before
    backup.restore(file, target, tmp_path, force=True)
    assert len(everything(target)["meta"]) == len(NAMES)


def damaged(file: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    with zipfile.ZipFile(file) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    change(members)
    other = file.with_name("damaged.zip")
    with zipfile.ZipFile(other, "w") as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return other


def manifest(members: dict[str, bytes], **changes: object) -> None:
    members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), **changes}).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.update({"tables/meta.jsonl": b'["a","b"]\n'}), "hash of table meta does not match"),
        (lambda members: members.pop("tables/events.jsonl"), "is not a backup, or is damaged"),
        (lambda members: members.pop("manifest.json"), "is not a backup, or is damaged"),
        (lambda members: manifest(members, format="other/1"), "is not a backup, or was written by a newer version"),
        (lambda members: manifest(members, revision="9999"), "was created by a newer version"),
        (
            lambda members: manifest(members, revision="0072"),
            r"zip was created by a development version .* 0072\), which",
        ),
    ],
)
def test_a_file_that_is_not_what_was_written_changes_nothing(
    tmp_path: Path, change: Callable[[dict[str, bytes]], object], message: str
) -> None:
    file, target = filled(tmp_path / "test.db", tmp_path)
    before = everything(target)
    with pytest.raises((ArtifactError, StoreError), match=message):
        backup.restore(damaged(file, change), target, tmp_path, force=True)
    assert everything(target) == before


def test_a_restore_that_fails_half_way_leaves_what_was_there(full: tuple[Path, Path | str], tmp_path: Path) -> None:
    file, target = full
    before = everything(target)

    def stop(name: str) -> None:
        if name == "metric_points":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup.restore(file, target, tmp_path, force=True, progress=stop)
    assert everything(target) == before


def test_a_database_in_use_is_left_alone(
    full: tuple[Path, Path | str], tmp_path: Path, postgres: PostgresProcess
) -> None:
    file, target = full
    if isinstance(target, Path):
        with offline.writing(target, tmp_path), pytest.raises(StoreError, match="in use by process"):
            backup.restore(file, target, tmp_path, force=True)
        return
    server = Database.open(target)
    try:
        with pytest.raises(StoreError, match=r"Tunefleet has \d other connections? to it"):
            backup.restore(file, target, tmp_path, force=True)
    finally:
        server.close()


def test_what_is_no_backup_is_named(target: Path | str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a backup")
    for name in ("notes.txt", "missing.zip"):
        with pytest.raises((ArtifactError, StoreError), match=name):
            backup.restore(tmp_path / name, target, tmp_path)
