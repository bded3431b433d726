"""Make all tables of an empty database at once, as they are after the newest migration.

The migrations would make the same, table by table and change by change, and take ten times as long, which each first
start of a server would wait for. A test holds one against the other. That every table is known is the package's care.
"""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import Column, Connection, Index, MetaData, PrimaryKeyConstraint, String, Table, insert
from sqlalchemy.schema import CreateIndex, CreateTable

from tunefleet.store.postgres_text import sort_by_code
from tunefleet.store.tables import DEFAULT_PROJECT, metadata
from tunefleet.store.tables_tenancy import MADE_WITH_TABLES, projects

# As alembic makes it.
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def create(connection: Connection, revision: str) -> None:
    """Make the tables and the project that every database has, in the caller's transaction.

    Args:
        connection: To a database without tables.
        revision: What the tables are: the newest revision.
    """
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table))
        # SQLAlchemy has them in any order, and of two that fit alike SQLite takes the one that was made last.
        for index in sorted(table.indexes, key=lambda each: str(each.name)):
            _narrow(connection, index)
            connection.execute(CreateIndex(index))
    _VERSION.create(connection, checkfirst=False)
    connection.execute(insert(_VERSION).values(version_num=revision))
    first = {"name": DEFAULT_PROJECT, "weight": 1.0, "created_by": MADE_WITH_TABLES, "created_at": time.time()}
    connection.execute(insert(projects).values(first))
    if connection.dialect.name == "postgresql":
        sort_by_code(connection)


def _narrow(connection: Connection, index: Index) -> None:
    """Let an index have the rows in PostgreSQL that it has in SQLite.

    To name PostgreSQL's option in the tables loads all of its dialect, a tenth of what a server with SQLite imports.
    """
    if connection.dialect.name == "postgresql":
        index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
