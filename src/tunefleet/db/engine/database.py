"""Opens a database; one thread writes, several threads read.

Knows SQLite's files and settings (`postgres` knows PostgreSQL's), not the tables' content. Repositories are plain
functions on a connection, so that one operation can combine any number of them.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from tunefleet.db.engine import migrate, postgres, sqlite
from tunefleet.db.engine.errors import cannot_be_used, is_lost, translate
from tunefleet.db.engine.writer import BeforeCommit, Writer
from tunefleet.errors import StoreError

if TYPE_CHECKING:
    from tunefleet.db.engine.postgres import PgNotifications

log = logging.getLogger(__name__)
T = TypeVar("T")
APPLICATION_ID: Final = 0x74666C74
"""Marks an SQLite file as ours (`tflt`)."""
READERS: Final = 4
_CHECKED_BYTES: Final = 64 << 20
"""Files up to this size are checked for damaged pages when they are opened."""
_PRIVATE: Final = 0o600
_PREFIX: Final = "sqlite:///"
_RESTORE: Final = "Restore it from a backup, or use another folder (--data)."


class Database:
    """A database with one writer and several readers; created by `open`."""

    def __init__(
        self,
        engines: tuple[Engine, Engine],
        on_wake: Callable[[frozenset[str]], None],
        before_commit: BeforeCommit | None = None,
        wakes: PgNotifications | None = None,
        pulsing: Engine | None = None,
    ) -> None:
        self._writing, self._reading = engines
        self._pulsing = pulsing
        self._wakes = wakes
        self._writer = Writer(self._writing, on_wake, before_commit, wakes.announce if wakes else None)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="tunefleet-reader")
        self._pulse = ThreadPoolExecutor(1, thread_name_prefix="tunefleet-pulse")

    @classmethod
    def open(
        cls,
        target: Path | str,
        *,
        synchronous: str = "FULL",
        on_wake: Callable[[frozenset[str]], None] = lambda _topics: None,
        before_commit: BeforeCommit | None = None,
    ) -> Database:
        """Open a database, create it if it does not exist, and migrate its tables.

        An SQLite file with older tables is copied first (`sqlite`).

        Args:
            on_wake: Called after each commit with the topics of its operations; with PostgreSQL also with those of
                other servers, and with `EVERYTHING` after notifications may have been lost.

        Raises:
            StoreError: If the database is damaged, unreachable, of another program or a newer version, or the URL is
                unsupported.
        """
        if isinstance(target, str) and postgres.is_postgres(target):
            return cls._open_postgres(target, on_wake, before_commit)
        path = sqlite_path(target)
        _refuse_foreign(path)
        engines = sqlite_engine(path, synchronous, writing=True), sqlite_engine(path, synchronous, writing=False)
        try:
            keep_private(path)
            _prepare(engines[0], path)
        except (DBAPIError, sqlite3.DatabaseError, OSError, StoreError) as error:
            for engine in engines:
                engine.dispose()
            if isinstance(error, StoreError):
                raise
            raise _unusable(path, error) from error
        return cls(engines, on_wake, before_commit)

    @classmethod
    def _open_postgres(
        cls, target: str, on_wake: Callable[[frozenset[str]], None], before_commit: BeforeCommit | None
    ) -> Database:
        from tunefleet.db.engine.postgres import PgNotifications  # noqa: PLC0415 -- most servers keep their data in SQLite

        url = postgres.address(target)
        engines = postgres.open_engines(url, READERS)
        try:
            wakes = PgNotifications(url, uuid.uuid4().hex, on_wake)
        except Exception as error:
            for engine in engines:
                engine.dispose()
            wrapped = DBAPIError(None, None, error)
            raise cannot_be_used(postgres.name_of(url), wrapped, url.password) from error
        return cls(engines, on_wake, before_commit, wakes, postgres.engine(url, writing=True, in_turn=False))

    @property
    def shared(self) -> bool:
        """Whether other servers may have the same database open."""
        return self._wakes is not None

    def write(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Run an operation in a transaction; the future gets its result after the commit."""
        return self._writer.submit(operation)

    def read(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Run an operation on a consistent snapshot, concurrently with the writer."""
        return self._readers.submit(self._read, operation)

    def pulse(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Run an operation in a transaction that does not wait for the writer lock: only for signs of life.

        With SQLite, which only one server uses, it is a normal write.
        """
        return self._writer.submit(operation) if self._pulsing is None else self._pulse.submit(self._beat, operation)

    def observe(self, on_group: Callable[[int], None], on_commit: Callable[[float], None]) -> None:
        """Set callbacks that run after each commit, in the writer thread.

        Args:
            on_commit: Called with the duration of the operations in seconds, including the commit.
        """
        self._writer.observers = (on_group, on_commit)

    def close(self) -> None:
        """Finish queued operations and close the database."""
        self._writer.close()
        self._readers.shutdown()
        self._pulse.shutdown()
        if self._pulsing is not None:
            self._pulsing.dispose()
        if self._wakes is not None:
            self._wakes.close()
        self._reading.dispose()
        self._writing.dispose()

    def _read(self, operation: Callable[[Connection], T]) -> T:
        try:
            return self._look(operation)
        except DBAPIError as error:
            if not is_lost(error):
                raise translate(error) from error
            log.warning("Lost the database connection; repeating the read: %s", error.orig)
        try:
            return self._look(operation)
        except DBAPIError as error:
            raise translate(error) from error

    def _beat(self, operation: Callable[[Connection], T]) -> T:
        assert self._pulsing is not None, "asked for with PostgreSQL only"
        try:
            with self._pulsing.begin() as connection:
                return operation(connection)
        except DBAPIError as error:
            raise translate(error) from error

    def _look(self, operation: Callable[[Connection], T]) -> T:
        with self._reading.connect() as connection:
            return operation(connection)


def sqlite_path(target: Path | str) -> Path:
    """Return the file of a path or `sqlite:///` URL."""
    if isinstance(target, Path):
        return target
    if target.startswith(_PREFIX):
        return Path(target.removeprefix(_PREFIX))
    if "://" in target:
        scheme = target.partition("://")[0]
        raise StoreError(
            f"Unsupported database: {scheme}.", hint="Leave TUNEFLEET_DATABASE_URL unset, or use postgresql://…"
        )
    return Path(target)


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise _unusable(path, error) from error
    if not header:
        return
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        raise StoreError(f"{path} is damaged, or not an SQLite database.", hint=_RESTORE)
    if int.from_bytes(header[68:72], "big") not in {0, APPLICATION_ID}:
        raise StoreError(f"{path} is the database of another program.", hint="Use another data folder.")


def _unusable(path: Path, error: BaseException) -> StoreError:
    if "malformed" in str(error) or "not a database" in str(error):
        return StoreError(f"{path} is damaged, or not an SQLite database.", hint=_RESTORE, detail=repr(error))
    translated = translate(error)
    reason = translated.message if isinstance(translated, StoreError) else f"{error}."
    return StoreError(
        f"Cannot open the database {path}. {reason}",
        hint="Check the disk and the owner of the folder, restore a backup, or use another data folder.",
        detail=repr(error),
    )


def sqlite_engine(path: Path, synchronous: str, *, writing: bool) -> Engine:
    """Return an engine with one connection that writes, or several that only read."""
    engine = create_engine(
        f"sqlite+pysqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": 30.0},
        **({"poolclass": StaticPool} if writing else {"poolclass": QueuePool, "pool_size": READERS}),
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        # Transactions are started below: the driver would start them late, and only for some statements.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL" if writing else "PRAGMA query_only = ON")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA cache_size = -{16_000 if writing else 4_000}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock from the start: upgrading a read transaction could fail with SQLITE_BUSY.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def keep_private(path: Path) -> None:
    """Make the file readable only by this user: it holds the secret of tokens. SQLite's other files inherit this."""
    path.touch(mode=_PRIVATE)
    if path.stat().st_mode & 0o077:
        path.chmod(_PRIVATE)


def _prepare(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        # The check must run outside a transaction, but SQLAlchemy has started one: use the driver's connection.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if path.stat().st_size <= _CHECKED_BYTES:
            (result,) = driver.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise StoreError(f"{path} has damaged pages.", hint=_RESTORE, detail=f"quick_check: {result}")
        driver.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate.to_head(engine, str(path), lambda revision: sqlite.make(path, revision, migrate.HEAD))
