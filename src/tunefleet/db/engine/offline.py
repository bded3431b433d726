"""Opens a database for inspection or restore, without the writer and readers of a server.

Supports both stores; changes nothing on its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, Engine, MetaData, Table, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from tunefleet.db.engine import database, migrate, postgres
from tunefleet.db.engine.errors import cannot_be_used, translate
from tunefleet.db.engine.locks import FolderLock
from tunefleet.db.engine.statistics import engine as engine_name
from tunefleet.db.tables.operations import MADE_WITH_TABLES
from tunefleet.errors import StoreError

VERSION_TABLE: Final = "alembic_version"
_OTHERS: Final = text(
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tunefleet' "
    "AND datname = current_database() AND pid <> pg_backend_pid()"
)
_FORGET_LIST: Final = text("SELECT pg_stat_clear_snapshot()")
_CLOSING_S: Final = 2.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """State of a database, and whether this version can use it.

    Args:
        engine: Database engine and its version; `None` if there is no database yet.
    """

    address: str
    engine: str | None
    revision: str | None
    newest: str
    tables: int
    rows: int

    @property
    def current(self) -> bool:
        """Whether a server can use it without a migration."""
        return self.revision == self.newest


def target_of(url: str | None, folder: Path) -> Path | str:
    """Return the database that a server with these settings opens."""
    if url is not None and postgres.is_postgres(url):
        return url
    return folder / "tunefleet.db" if url is None else database.sqlite_path(url)


def name_of(target: Path | str) -> str:
    """Return the display name of a database, without its password."""
    return postgres.name_of(postgres.address(target)) if isinstance(target, str) else str(target)


def status_of(target: Path | str) -> DatabaseStatus:
    """Inspect a database; a missing file is not created.

    Raises:
        StoreError: If it is unreachable or unreadable, or of another program or a newer version.
    """
    name = name_of(target)
    if isinstance(target, Path) and not target.exists():
        return DatabaseStatus(name, None, None, migrate.HEAD, 0, 0)
    with reading(target) as connection:
        revision = migrate.revision_of(connection, name)
        tables, rows = len(tables_of(connection)), rows_of(connection)
        return DatabaseStatus(name, engine_name(connection), revision, migrate.HEAD, tables, rows)


@contextmanager
def reading(target: Path | str) -> Iterator[Connection]:
    """Open a snapshot of a database, even while servers write to it.

    Raises:
        StoreError: If it is unreachable or unreadable.
    """
    if isinstance(target, Path) and not target.exists():
        raise StoreError(f"Database {target} not found.", hint="Set the server's data folder with --data.")
    with _engine(target, writing=False) as engine, _in_words(target), engine.connect() as connection:
        yield connection


@contextmanager
def writing(target: Path | str, folder: Path) -> Iterator[Connection]:
    """Open a database that no server uses, in one transaction.

    Raises:
        StoreError: If a server uses it, or it is unreachable or not writable.
    """
    if isinstance(target, Path):
        with closing_all(FolderLock.take(folder), FolderLock.take_database(target, folder)):
            database.keep_private(target)
            with _engine(target, writing=True) as engine, _in_words(target), engine.begin() as connection:
                yield connection
            return
    with _engine(target, writing=True) as engine, _in_words(target), engine.begin() as connection:
        _require_alone(connection, name_of(target))
        yield connection


def _require_alone(connection: Connection, name: str) -> None:
    # PostgreSQL still lists the connections of a server that has just stopped for a moment.
    deadline = time.monotonic() + _CLOSING_S
    while others := connection.execute(_OTHERS).scalar_one():
        if time.monotonic() >= deadline:
            raise StoreError(
                f"{name} is in use: Tunefleet has {others} other connection{'s' if others > 1 else ''} to it.",
                hint="Stop every server with this TUNEFLEET_DATABASE_URL.",
            )
        time.sleep(_POLL_S)
        # Within a transaction the list of connections is read once.
        connection.execute(_FORGET_LIST)


@contextmanager
def closing_all(*locks: FolderLock) -> Iterator[None]:
    """Release locks at the end."""
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def rows_of(connection: Connection) -> int:
    """Return the number of rows in all tables, without those that are created with the tables."""
    rows = 0
    for table in tables_of(connection):
        query = select(func.count()).select_from(table)
        if table.name == "projects":
            query = query.where(table.c.created_by != MADE_WITH_TABLES)
        rows += connection.execute(query).scalar_one()
    return rows


def tables_of(connection: Connection) -> list[Table]:
    """Return the tables of a database, which may be those of an older version."""
    # Only columns: indexes and constraints are created by migrations, and reflecting them takes long.
    found = inspect(connection).get_multi_columns()
    columns = {name: of_one for (_, name), of_one in found.items() if name and name != VERSION_TABLE}
    reflected = MetaData()
    return [Table(name, reflected, *(Column(c["name"], c["type"]) for c in columns[name])) for name in sorted(columns)]


@contextmanager
def _engine(target: Path | str, *, writing: bool) -> Iterator[Engine]:
    if isinstance(target, str):
        url = postgres.address(target)
        made = postgres.engine(url, writing=writing)
    else:
        made = database.sqlite_engine(target, "FULL", writing=writing)
    try:
        if isinstance(target, str):
            postgres.look_at(made, postgres.address(target))
        yield made
    finally:
        made.dispose()


@contextmanager
def _in_words(target: Path | str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if isinstance(target, str):
            raise cannot_be_used(name_of(target), error, postgres.address(target).password) from error
        raise translate(error) from error
