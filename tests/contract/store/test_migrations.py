"""Tables up from nothing and from every older revision, in each store; and what their upgrades keep."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tunefleet.errors import StoreError
from tunefleet.store import Connection, Database, channels, migrate, opening, training
from tunefleet.store.tables import metadata

REVISIONS = sorted(each.revision for each in ScriptDirectory(str(migrate.FOLDER)).walk_revisions())
QUICK = {"0001"}
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


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, metadata))


def described(target: Path | str) -> dict[str, list[str]]:
    """Return all that the store keeps of its tables' make, without the order of columns."""
    with opening.reading(target) as connection:
        asked = SQLITE if connection.dialect.name == "sqlite" else POSTGRES
        return {what: sorted(str(tuple(row)) for row in connection.execute(text(sql))) for what, sql in asked.items()}


def at(target: Path | str, folder: Path, revision: str, *statements: tuple[str, dict[str, object]]) -> None:
    """Make a database as an older version had it."""
    with opening.writing(target, folder) as connection:
        migrate.upgrade(connection, revision)
        for statement, values in statements:
            connection.execute(text(statement), values)


def test_the_migrations_make_the_tables_that_the_code_works_with(database: Database) -> None:
    assert database.write(differences).result(30) == []
    assert ScriptDirectory(str(migrate.FOLDER)).get_current_head() == migrate.HEAD
    assert [revision for revision in REVISIONS if not migrate.is_known(revision)] == []


def test_an_empty_database_is_made_at_once_as_the_migrations_would_have_made_it(
    empty: Path | str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    other = tmp_path / "other.db" if isinstance(empty, Path) else request.getfixturevalue("postgres_url")
    at(empty, tmp_path, migrate.HEAD)
    Database.open(other).close()
    migrated, made = described(empty), described(other)
    assert all(migrated.values())
    assert made == migrated
    for target in (empty, other):
        with opening.reading(target) as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [migrate.HEAD]
            found = connection.execute(text("SELECT name, weight, created_by, archived_at FROM projects")).all()
        assert [tuple(each) for each in found] == [("default", 1.0, "tunefleet", None)]


@pytest.mark.parametrize(
    "revision", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in REVISIONS]
)
def test_each_older_revision_comes_up_to_date(empty: Path | str, tmp_path: Path, revision: str) -> None:
    at(empty, tmp_path, revision, ("INSERT INTO meta (name, value) VALUES ('kept', 'x')", {}))
    before = opening.standing(empty)
    assert (before.revision, before.current, before.rows) == (revision, revision == migrate.HEAD, 1)
    opened = Database.open(empty)
    try:
        assert opened.write(differences).result(30) == []
    finally:
        opened.close()
    after = opening.standing(empty)
    assert (after.current, after.tables, after.rows) == (True, len(metadata.tables), 1)


def test_of_several_who_open_an_empty_database_at_once_one_makes_the_tables(postgres_empty: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(Database.open, [postgres_empty] * 4))
    try:
        assert opened[0].write(differences).result(30) == []
    finally:
        for each in opened:
            each.close()


def test_a_newer_database_is_refused(target: Path | str, tmp_path: Path) -> None:
    Database.open(target).close()
    with opening.writing(target, tmp_path) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"newer version of Tunefleet \(revision 9999"):
        Database.open(target)
    with pytest.raises(StoreError, match="newer version"):
        opening.standing(target)


def test_of_postgresql_no_copy_is_made_and_that_is_said(
    postgres_empty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at(postgres_empty, tmp_path, "0001")
    with caplog.at_level(logging.INFO):
        Database.open(postgres_empty).close()
    told = f"from revision 0001 to {migrate.HEAD}. Of PostgreSQL no copy is made here: pg_dump makes one."
    assert told in caplog.text


@pytest.mark.parametrize("table", ["theirs", "alembic_version"])
def test_tables_of_another_program_are_refused(empty: Path | str, tmp_path: Path, table: str) -> None:
    with opening.writing(empty, tmp_path) as connection:
        connection.execute(text(f"CREATE TABLE {table} (version_num VARCHAR)"))
    with pytest.raises(StoreError, match="another program"):
        Database.open(empty)


def test_what_was_registered_survives_the_upgrade_that_drops_a_column(empty: Path | str, tmp_path: Path) -> None:
    registered = (
        "INSERT INTO training_jobs (task_id, registered, body, resumed_from, checkpoint, updates) "
        "VALUES ('task-1', 1, '{}', NULL, '/ckpt', '[]')"
    )
    at(empty, tmp_path, "0003", (registered, {}))
    opened = Database.open(empty)
    try:
        kept = opened.write(lambda connection: training.job(connection, "task-1")).result(30)
    finally:
        opened.close()
    assert kept == training.JobRow("task-1", "{}", None, "/ckpt", "[]")


def test_who_was_told_everything_is_told_of_campaigns_after_the_upgrade(empty: Path | str, tmp_path: Path) -> None:
    channel = (
        "INSERT INTO notification_channels (id, project, owner, name, format, target, events, everyone, enabled, "
        "created_at) VALUES (:id, 'default', 'me', :name, 'webhook', 'https://x', :events, 0, 1, 1)"
    )
    asked = {"all": "done,failed,out_of_memory,stalled,paused,worker_lost", "few": "done,failed"}
    rows = [(channel, {"id": f"chn-{name}", "name": name, "events": events}) for name, events in asked.items()]
    at(empty, tmp_path, "0005", *rows)
    opened = Database.open(empty)
    try:
        told = {row.name: row.events for row in opened.read(channels.all_rows).result(30)}
    finally:
        opened.close()
    assert told["all"].split(",")[-2:] == ["promoted", "budget"]
    assert told["few"] == "done,failed"
