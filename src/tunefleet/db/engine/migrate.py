"""Migrates the tables to the version of this code.

Alembic is imported only for an older database: other starts do not pay for the import.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    text,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from tunefleet.db.tables.core import DEFAULT_PROJECT, metadata
from tunefleet.db.tables.operations import MADE_WITH_TABLES, projects
from tunefleet.errors import StoreError

# All revisions, oldest first; a test compares them with the folder.
#
# Lower numbers belong to development versions before the first release: no migration starts from them.
#
REVISIONS: Final = ("0100", "0101", "0102", "0103")
HEAD: Final = REVISIONS[-1]
FOLDER: Final = Path(__file__).parent.parent / "migrations"
_OURS: Final = frozenset({"alembic_version", "meta"})
# The same definition as Alembic's own.
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
_UNSORTED: Final = """
    SELECT quote_ident(c.relname) AS tab, quote_ident(a.attname) AS col, format_type(a.atttypid, a.atttypmod) AS type
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_collation k ON k.oid = a.attcollation
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
      AND k.collname = 'default'
    ORDER BY c.relname, a.attnum
"""


def to_head(engine: Engine, name: str, before: Callable[[str], object]) -> None:
    """Create the tables of an empty database, or run the missing migrations.

    Args:
        before: Called with the current revision before a migration, while no other process can write; an exception
            cancels the migration. Not called for a database without tables.
    """
    with engine.begin() as connection:
        revision = revision_of(connection, name)
        if revision == HEAD:
            return
        if revision is None:
            create(connection, HEAD)
        else:
            before(revision)
            upgrade(connection)


def revision_of(connection: Connection, name: str) -> str | None:
    """Return the revision of a database's tables, `None` if it has no tables."""
    found = set(inspect(connection).get_table_names())
    if not found:
        return None
    if not found >= _OURS:
        raise StoreError(f"{name} contains tables of another program.", hint="Use another data folder or database.")
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is not None:
        refuse_unknown(revision, name)
    return revision


def refuse_unknown(revision: str, name: str, version: str | None = None) -> None:
    """Raise an error for tables that this version can neither use nor migrate.

    Raises:
        StoreError: If a newer or a development version of Tunefleet made the tables.
    """
    if revision in REVISIONS:
        return
    made = f"revision {revision}" if version is None else f"{version}, revision {revision}"
    if revision.isdecimal() and revision < REVISIONS[0]:
        raise StoreError(
            f"{name} was created by a development version of Tunefleet ({made}), which this version cannot open.",
            hint="Start with an empty data folder or database, or use the version that created it.",
        )
    raise StoreError(
        f"{name} was created by a newer version of Tunefleet ({made}; this version supports {HEAD}).",
        hint="Upgrade Tunefleet, or use another data folder or database.",
    )


def upgrade(connection: Connection, revision: str | None = None) -> None:
    """Run the migrations up to a revision, by default the newest one, in the caller's transaction."""
    from alembic import command  # noqa: PLC0415 - a third of a second, needed once per upgrade
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, revision or HEAD)
    if connection.dialect.name == "postgresql":
        _sort_by_code(connection)


def create(connection: Connection, revision: str) -> None:
    """Create the tables and the default project, in the caller's transaction."""
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table))
        # SQLAlchemy's order is arbitrary, and of two equally suitable indexes SQLite uses the one created last.
        for index in sorted(table.indexes, key=lambda each: str(each.name)):
            _narrow(connection, index)
            connection.execute(CreateIndex(index))
    _VERSION.create(connection, checkfirst=False)
    connection.execute(insert(_VERSION).values(version_num=revision))
    first = {"name": DEFAULT_PROJECT, "weight": 1.0, "created_by": MADE_WITH_TABLES, "created_at": time.time()}
    connection.execute(insert(projects).values(first))
    if connection.dialect.name == "postgresql":
        _sort_by_code(connection)


def _narrow(connection: Connection, index: Index) -> None:
    """Apply an index's partial condition in PostgreSQL, too."""
    if connection.dialect.name == "postgresql":
        # Not declared in the tables: PostgreSQL's option would load its dialect, a tenth of a SQLite server's imports.
        index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]


def _sort_by_code(connection: Connection) -> None:
    """Sort every text column by code point, whatever the database's locale is."""
    # Lists then have the same order in both stores, and no index depends on the operating system's collation, which
    # changes with its upgrades.
    changes: dict[str, list[str]] = {}
    for table, column, type_ in connection.exec_driver_sql(_UNSORTED).all():
        changes.setdefault(table, []).append(f'ALTER COLUMN {column} TYPE {type_} COLLATE "C"')
    for table, columns in changes.items():
        connection.exec_driver_sql(f"ALTER TABLE {table} {', '.join(columns)}")
