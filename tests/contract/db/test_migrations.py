"""Tables up from nothing and from an older revision, in each store; what an upgrade keeps; what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tunefleet.db import Connection, Database, backup
from tunefleet.db.engine import migrate, offline, sqlite
from tunefleet.db.repositories import training_protocol
from tunefleet.db.tables.core import metadata
from tunefleet.errors import StoreError

# All that the next revision makes different from the tables that this version's code works with.
OF_THE_NEXT = ["modify_nullable training_jobs.updates", "remove_column meta.size", "remove_table labels"]
# What a store itself says of its tables, each as text, in an order that does not depend on how they came about.
SQLITE = {
    "columns": """
        SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk
        FROM sqlite_master m JOIN pragma_table_xinfo(m.name) c WHERE m.type = 'table'""",
    "tables": "SELECT name, wr, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite_%'",
    "counting": "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'",
    "keys": """
        SELECT m.name, i."unique", i.origin, i.partial, group_concat(x.name || ' ' || x.desc || ' ' || x.coll)
        FROM sqlite_master m JOIN pragma_index_list(m.name) i JOIN pragma_index_xinfo(i.name) x
        WHERE m.type = 'table' AND x.key GROUP BY m.name, i.name""",
    "indexes": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
}
POSTGRES = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, k.collname,
          pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation k ON k.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0
          AND NOT a.attisdropped""",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    "constraints": """
        SELECT conname, conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = current_schema()::regnamespace""",
    "sequences": "SELECT sequencename, data_type::text FROM pg_sequences WHERE schemaname = current_schema()",
}


def differences(connection: Connection) -> list[str]:
    """Say by what the tables of a database are not those that the code works with."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    found = []
    for each in compare_metadata(context, metadata):
        what, *where = each[0] if isinstance(each, list) else each
        # (what, table), (what, schema, table, column) or (what, schema, table, name of a column, …).
        names = [str(getattr(name, "name", name)) for name in (where[:1] if len(where) == 1 else where[1:3])]
        found.append(f"{what} {'.'.join(names)}")
    return sorted(found)


def described(target: Path | str) -> dict[str, list[str]]:
    """Return all that the store keeps of its tables' make, without the order of columns."""
    with offline.reading(target) as connection:
        asked = SQLITE if connection.dialect.name == "sqlite" else POSTGRES
        return {what: sorted(str(tuple(row)) for row in connection.execute(text(sql))) for what, sql in asked.items()}


def put(target: Path | str, folder: Path, *statements: str) -> None:
    """Write to a database that no server has open."""
    with offline.writing(target, folder) as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture
def older(target: Path | str, tmp_path: Path, next_revision: Callable[[], str]) -> Path | str:
    """A database with rows, of the version before this one."""
    Database.open(target).close()
    labels = "INSERT INTO meta (name, value) VALUES ('kept', 'four'), ('label-1', 'red'), ('label-2', 'green')"
    job = (
        "INSERT INTO training_jobs (task_id, body, resumed_from, checkpoint, updates) "
        "VALUES ('task-1', '{}', NULL, '/ckpt', '[]')"
    )
    put(target, tmp_path, labels, job)
    next_revision()
    return target


def test_the_migrations_make_the_tables_that_the_code_works_with(database: Database) -> None:
    assert database.write(differences).result(30) == []
    found = [each.revision for each in ScriptDirectory(str(migrate.FOLDER)).walk_revisions()]
    assert tuple(reversed(found)) == migrate.REVISIONS


def test_an_empty_database_is_made_at_once_as_the_migrations_would_have_made_it(
    empty: Path | str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    other = tmp_path / "other.db" if isinstance(empty, Path) else request.getfixturevalue("postgres_url")
    with offline.writing(empty, tmp_path) as connection:
        migrate.upgrade(connection)
    Database.open(other).close()
    migrated, made = described(empty), described(other)
    assert all(migrated.values())
    assert made == migrated
    for target in (empty, other):
        with offline.reading(target) as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [migrate.HEAD]
            found = connection.execute(text("SELECT name, weight, created_by, archived_at FROM projects")).all()
        assert [tuple(each) for each in found] == [("default", 1.0, "tunefleet", None)]


def test_an_older_database_comes_up_to_date_with_all_its_rows(older: Path | str) -> None:
    before, made = offline.status_of(older), described(older)
    assert (before.revision, before.current, before.rows) == (migrate.REVISIONS[-2], False, 4)
    opened = Database.open(older)
    try:
        assert opened.write(differences).result(30) == OF_THE_NEXT
        kept = opened.read(lambda connection: training_protocol.job(connection, "task-1")).result(30)
    finally:
        opened.close()
    after = offline.status_of(older)
    assert (after.revision, after.current, after.tables) == (migrate.HEAD, True, len(metadata.tables) + 1)
    assert kept == training_protocol.JobRow("task-1", "{}", None, "/ckpt", "[]")
    with offline.reading(older) as connection:
        sizes = connection.execute(text("SELECT size FROM meta WHERE name = 'kept'")).scalar_one()
        labels = connection.execute(text("SELECT seq, name FROM labels ORDER BY seq")).all()
    assert (sizes, [tuple(each) for each in labels]) == (4, [(1, "red"), (2, "green")])
    # What the next revision does not touch is as it was, and its texts are sorted as all others.
    now = described(older)
    assert {
        what: [row for row in rows if "labels" not in row and row not in now[what]] for what, rows in made.items()
    } == {what: [row for row in rows if "training_jobs" in row and "updates" in row] for what, rows in made.items()}
    assert not [row for row in now["columns"] if "'default'" in row]


def test_a_migration_that_fails_leaves_everything_as_it_was(older: Path | str, tmp_path: Path) -> None:
    put(older, tmp_path, "INSERT INTO meta (name, value) VALUES ('label-3', 'red')")
    before, made = offline.status_of(older), described(older)
    with pytest.raises(StoreError):
        Database.open(older)
    assert (offline.status_of(older), described(older)) == (before, made)
    put(older, tmp_path, "UPDATE meta SET value = 'blue' WHERE name = 'label-3'")
    Database.open(older).close()
    assert offline.status_of(older).current


def test_of_several_who_open_an_empty_database_at_once_one_makes_the_tables(postgres_empty: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(Database.open, [postgres_empty] * 4))
    try:
        assert opened[0].write(differences).result(30) == []
    finally:
        for each in opened:
            each.close()


def test_of_several_who_open_an_older_database_at_once_one_migrates_it(
    postgres_url: str, next_revision: Callable[[], str]
) -> None:
    served = Database.open(postgres_url)
    next_revision()
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(Database.open, [postgres_url] * 4))
    try:
        assert opened[0].write(differences).result(30) == OF_THE_NEXT
        # A server of the version before goes on until it is its turn.
        served.write(lambda c: c.execute(text("INSERT INTO meta (name, value) VALUES ('by', 'the old one')"))).result(
            30
        )
        rows = opened[1].read(lambda c: c.execute(text("SELECT value FROM meta WHERE name = 'by'")).scalar_one())
        assert rows.result(30) == "the old one"
    finally:
        for each in (served, *opened):
            each.close()


def test_a_newer_database_is_refused(target: Path | str, tmp_path: Path) -> None:
    Database.open(target).close()
    put(target, tmp_path, "UPDATE alembic_version SET version_num = '9999'")
    before = described(target)
    for opened in (Database.open, offline.status_of):
        with pytest.raises(StoreError, match=r"newer version of Tunefleet \(revision 9999") as refused:
            opened(target)
        assert refused.value.hint == "Upgrade Tunefleet, or use another data folder or database."
    assert described(target) == before


def test_a_database_of_a_development_version_is_refused(target: Path | str, tmp_path: Path) -> None:
    Database.open(target).close()
    file, name = tmp_path / "fleet.zip", offline.name_of(target)
    backup.write(target, file)
    before = described(target)
    for revision, work in (
        ("0001", lambda: Database.open(target)),
        ("0072", lambda: Database.open(target)),
        ("0001", lambda: offline.status_of(target)),
        ("0072", lambda: backup.write(target, tmp_path / "other.zip")),
        ("0072", lambda: backup.restore(file, target, tmp_path, force=True)),
    ):
        put(target, tmp_path, f"UPDATE alembic_version SET version_num = '{revision}'")
        with pytest.raises(StoreError) as refused:
            work()
        made = f"{name} was created by a development version of Tunefleet (revision {revision})"
        assert refused.value.message == f"{made}, which this version cannot open."
        assert refused.value.hint == "Start with an empty data folder or database, or use the version that created it."
    assert described(target) == before
    assert not isinstance(target, Path) or sqlite.of(target) == []


def test_of_postgresql_no_copy_is_made_and_that_is_said(
    postgres_url: str, next_revision: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    before, after = migrate.HEAD, next_revision()
    with caplog.at_level(logging.INFO):
        Database.open(postgres_url).close()
    assert f"from revision {before} to {after}. PostgreSQL databases are not copied first; use pg_dump." in caplog.text


@pytest.mark.parametrize("table", ["theirs", "alembic_version"])
def test_tables_of_another_program_are_refused(empty: Path | str, tmp_path: Path, table: str) -> None:
    with offline.writing(empty, tmp_path) as connection:
        connection.execute(text(f"CREATE TABLE {table} (version_num VARCHAR)"))
    with pytest.raises(StoreError, match="another program"):
        Database.open(empty)
