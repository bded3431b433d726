"""Open a database, write through one thread and read through a few.

Knows SQLite's files and settings (`postgres` knows PostgreSQL's); not what lies in the tables. Repositories are plain
functions on a connection, so that any number of them make up one operation.
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

from tunefleet.db.engine import migrate, postgres, postgres_support, sqlite
from tunefleet.db.engine.errors import is_lost, translate
from tunefleet.db.engine.writer import BeforeCommit, Writer
from tunefleet.errors import StoreError

if TYPE_CHECKING:
    from tunefleet.db.engine.notify import Wakes

log = logging.getLogger(__name__)
T = TypeVar("T")
APPLICATION_ID: Final = 0x74666C74
"""Marks an SQLite file as ours (`tflt`)."""
READERS: Final = 4
_CHECKED_BYTES: Final = 64 << 20
"""A file up to this size is checked page by page when it is opened."""
_PRIVATE: Final = 0o600
_PREFIX: Final = "sqlite:///"
_RESTORE: Final = "Restore it from a backup, or use another folder (--data)."


class Database:
    """A database with one writer and some readers; `open` makes one."""

    def __init__(
        self,
        engines: tuple[Engine, Engine],
        on_wake: Callable[[frozenset[str]], None],
        before_commit: BeforeCommit | None = None,
        wakes: Wakes | None = None,
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
        """Open a database, make it if there is none, and bring its tables up to date.

        A file of SQLite's whose tables are older is copied first (`copies`).

        Args:
            on_wake: Called after each commit with the topics that its operations named; with PostgreSQL also with
                those of other servers, and with `EVERYTHING` when they could not be heard for a while.

        Raises:
            StoreError: If the database is damaged, of another program or of a newer version, or cannot be reached, or
                the URL is of another kind.
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
        from tunefleet.db.engine.notify import Wakes  # noqa: PLC0415 -- most servers keep their data in SQLite

        url = postgres.address(target)
        engines = postgres.open_engines(url, READERS)
        try:
            wakes = Wakes(url, uuid.uuid4().hex, on_wake)
        except Exception as error:
            for engine in engines:
                engine.dispose()
            told = DBAPIError(None, None, error)
            raise postgres_support.cannot_be_used(postgres.name_of(url), told, url.password) from error
        return cls(engines, on_wake, before_commit, wakes, postgres.engine(url, writing=True, in_turn=False))

    @property
    def shared(self) -> bool:
        """Whether other servers may have the same database open."""
        return self._wakes is not None

    def write(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Run an operation in a transaction; it is committed when the future has its result."""
        return self._writer.submit(operation)

    def read(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Run an operation on one consistent snapshot, beside the writer."""
        return self._readers.submit(self._read, operation)

    def pulse(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Run an operation in a transaction that waits for nobody's turn to write: for signs of life alone.

        With SQLite, which one server has to itself, it is written as everything else.
        """
        return self._writer.submit(operation) if self._pulsing is None else self._pulse.submit(self._beat, operation)

    def observe(self, on_group: Callable[[int], None], on_commit: Callable[[float], None]) -> None:
        """Let somebody hear of each commit, in the writer thread.

        Args:
            on_commit: Gets how many seconds they took, the commit included.
        """
        self._writer.observers = (on_group, on_commit)

    def close(self) -> None:
        """Finish what is queued and let go of the file."""
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
            log.warning("The database was lost; what was read is read again: %s", error.orig)
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
    """Return the file that a path or an `sqlite:///` URL names."""
    if isinstance(target, Path):
        return target
    if target.startswith(_PREFIX):
        return Path(target.removeprefix(_PREFIX))
    if "://" in target:
        scheme = target.partition("://")[0]
        raise StoreError(
            f"A {scheme} database cannot be used.", hint="Leave TUNEFLEET_DATABASE_URL unset, or write postgresql://…"
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
        raise StoreError(f"{path} is damaged, or no database.", hint=_RESTORE)
    if int.from_bytes(header[68:72], "big") not in {0, APPLICATION_ID}:
        raise StoreError(f"{path} is the database of another program.", hint="Use another data folder.")


def _unusable(path: Path, error: BaseException) -> StoreError:
    if "malformed" in str(error) or "not a database" in str(error):
        return StoreError(f"{path} is damaged, or no database.", hint=_RESTORE, detail=repr(error))
    told = translate(error)
    reason = told.message if isinstance(told, StoreError) else f"It cannot be opened: {error}."
    return StoreError(
        f"The database {path} cannot be used. {reason}",
        hint="Check the disk and who owns the folder, restore a backup, or use another data folder.",
        detail=repr(error),
    )


def sqlite_engine(path: Path, synchronous: str, *, writing: bool) -> Engine:
    """Return an engine with one connection that writes, or some that only read."""
    engine = create_engine(
        f"sqlite+pysqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": 30.0},
        **({"poolclass": StaticPool} if writing else {"poolclass": QueuePool, "pool_size": READERS}),
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        # Transactions are begun below, not by the driver, which would begin them late and only for some statements.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL" if writing else "PRAGMA query_only = ON")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA cache_size = -{16_000 if writing else 4_000}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def keep_private(path: Path) -> None:
    """Make the file readable by this user alone: it holds what tokens are made of. SQLite's other files follow it."""
    path.touch(mode=_PRIVATE)
    if path.stat().st_mode & 0o077:
        path.chmod(_PRIVATE)


def _prepare(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        # The pool's only connection must not be in a transaction for this; it is, so the driver's own is used.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if path.stat().st_size <= _CHECKED_BYTES:
            (verdict,) = driver.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise StoreError(
                    f"{path} is damaged: some of its pages are broken.", hint=_RESTORE, detail=f"quick_check: {verdict}"
                )
        driver.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate.to_head(engine, str(path), lambda revision: sqlite.make(path, revision, migrate.HEAD))
