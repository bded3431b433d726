"""Opens a PostgreSQL database: its engines, and the errors of one that is unusable.

Several servers may use one database. Each writing transaction starts by taking one lock of the whole database, so that
they write one after another, like the threads of one server; readers take no lock (decision 030).

Change notifications between servers (NOTIFY and LISTEN) are sent with the commit of the change, or not at all. While
the listening connection is down they are lost, so that all topics are published after a reconnect.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from tunefleet import errors
from tunefleet.db.engine import migrate
from tunefleet.db.engine.errors import cannot_be_used
from tunefleet.db.engine.writer import EVERYTHING
from tunefleet.errors import StoreError

CHANNEL: Final = "tunefleet_wake"
MAX_PAYLOAD_BYTES: Final = 7_900
"""PostgreSQL limits a payload to less than 8,000 bytes."""
# Pauses between reconnects; the last one repeats.
_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0)
log = logging.getLogger(__name__)
SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
WRITER_LOCK: Final = 0x74666C74
"""The advisory lock of writing transactions (`tflt`)."""
LEAST_VERSION: Final = 140000
_CONNECT_TIMEOUT_S: Final = 10
_STUCK_S: Final = 60
"""PostgreSQL ends an idle transaction after this time, so that a stalled server does not block the others."""
_LIVENESS: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_SESSION: Final = f"""
    SELECT set_config('idle_in_transaction_session_timeout', '{_STUCK_S}s', false),
           set_config('jit', 'off', false),
           set_config('tcp_keepalives_idle', '10', false),
           set_config('tcp_keepalives_interval', '5', false),
           set_config('tcp_keepalives_count', '3', false),
           set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""
_LOOK: Final = """
    SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS version_text,
           current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS standby
"""
# Requires write permission, and writes nothing.
_PROBE: Final = "UPDATE meta SET value = value WHERE false"
_NO_COPY: Final = "Migrating the tables from revision %s to %s. PostgreSQL databases are not copied first; use pg_dump."
SHOWN: Final = "\u2400"


def is_postgres(target: object) -> bool:
    """Return whether a database target is a PostgreSQL URL."""
    return isinstance(target, str) and target.partition("://")[0] in SCHEMES


def address(target: str) -> URL:
    """Return a database's URL, ready for the driver."""
    try:
        url = make_url(target).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError) as error:
        # Neither URL nor error is shown: a password may be anywhere in them.
        raise StoreError(
            "TUNEFLEET_DATABASE_URL is not a valid database URL.",
            hint="Use postgresql://USER:PASSWORD@HOST:5432/DATABASE, with special characters encoded as %XX.",
        ) from error
    try:
        import psycopg  # noqa: F401, PLC0415 -- an extra: most servers keep their data in SQLite
    except ImportError as error:
        raise StoreError(
            "A PostgreSQL database requires the package psycopg.",
            hint=f"Install it: {errors.install_command('postgres')}",
            detail=repr(error),
        ) from error
    return url


def name_of(url: URL) -> str:
    """Return the display name of a database, without its password."""
    query = {key: value for key, value in url.query.items() if key in {"host", "port", "dbname"}}
    host = url.host or query.get("host") or "localhost"
    port = url.port or query.get("port") or 5432
    return f"postgresql://{f'{url.username}@' if url.username else ''}{host}:{port}/{url.database or ''}"


def open_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
    """Open a database and migrate its tables."""
    engines = writing, _ = engine(url, writing=True), engine(url, writing=False, size=readers)
    try:
        look_at(writing, url)
        migrate.to_head(writing, name_of(url), lambda revision: log.info(_NO_COPY, revision, migrate.HEAD))
        with writing.begin() as connection:
            connection.exec_driver_sql(_PROBE)
    except (DBAPIError, StoreError) as error:
        for each in engines:
            each.dispose()
        if isinstance(error, StoreError):
            raise
        raise cannot_be_used(name_of(url), error, url.password) from error
    return engines


def look_at(writing: Engine, url: URL) -> str:
    """Refuse an unsuitable database, whatever its tables are; changes nothing.

    Raises:
        StoreError: If it is unreachable, too old, a standby, or not encoded as UTF-8.
    """
    name = name_of(url)
    try:
        with writing.connect() as connection:
            found = connection.exec_driver_sql(_LOOK).one()
    except DBAPIError as error:
        raise cannot_be_used(name, error, url.password) from error
    if found.version < LEAST_VERSION:
        raise StoreError(f"{name} is PostgreSQL {found.version_text}, which is too old.", hint="Use 14 or newer.")
    if found.encoding != "UTF8":
        raise StoreError(
            f"{name} has the encoding {found.encoding}, not UTF8.",
            hint="Create one with: CREATE DATABASE tunefleet ENCODING 'UTF8' TEMPLATE template0",
        )
    if found.standby:
        raise StoreError(f"{name} is a read-only standby.", hint="Use the URL of the primary.")
    return str(found.version_text)


def engine(url: URL, *, writing: bool, size: int = 1, in_turn: bool = True) -> Engine:
    """Return an engine whose transactions write one after another, or only read, each on one snapshot."""
    from psycopg import IsolationLevel  # noqa: PLC0415

    made = create_engine(
        url,
        # The URL must not override the name: a restore detects running servers by it.
        connect_args={"connect_timeout": _CONNECT_TIMEOUT_S, **_LIVENESS, **url.query, "application_name": "tunefleet"},
        use_native_hstore=False,
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=0,
    )

    @event.listens_for(made, "connect")
    def configure(connection: Any, _record: object) -> None:
        _install_text(connection)
        connection.autocommit = True
        connection.execute(_SESSION)
        connection.autocommit = False
        # A writer must see what was committed while it waited for the lock, whatever the database's default is.
        connection.isolation_level = IsolationLevel.READ_COMMITTED if writing else IsolationLevel.REPEATABLE_READ
        if not writing:
            connection.read_only = True

    if writing and in_turn:

        @event.listens_for(made, "begin")
        def take_turn(connection: Connection) -> None:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")

    return made


def payloads(sender: str, topics: Iterable[str]) -> Iterator[str]:
    """Yield the payloads for topics, as few as possible."""
    part: list[str] = []
    size = frame = len(sender) + 16
    for topic in sorted(topics):
        length = len(json.dumps(topic)) + 2
        if part and size + length > MAX_PAYLOAD_BYTES:
            yield json.dumps([sender, part])
            part, size = [], frame
        part.append(topic)
        size += length
    if part:
        yield json.dumps([sender, part])


class PgNotifications:
    """Sends and receives the notifications of one server.

    Args:
        on_wake: Called in a thread of its own with the topics of other servers' operations, and with `EVERYTHING`
            after a reconnect.
    """

    def __init__(self, url: URL, sender: str, on_wake: Callable[[frozenset[str]], None]) -> None:
        self._sender = sender
        self._on_wake = on_wake
        self._engine = engine(url, writing=False)
        self._stop, self._stopper = os.pipe()
        self._connection: Any = self._listen()
        self._thread = threading.Thread(target=self._run, name="tunefleet-wakes", daemon=True)
        self._thread.start()

    def announce(self, connection: Connection, topics: frozenset[str]) -> None:
        """Notify other servers of topics with the commit of the current transaction."""
        for payload in payloads(self._sender, topics):
            connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, payload))

    def close(self) -> None:
        """Stop listening."""
        if not self._thread.is_alive():
            return
        os.write(self._stopper, b".")
        self._thread.join()
        os.close(self._stop)
        os.close(self._stopper)
        self._engine.dispose()

    def _listen(self) -> Any:
        raw = self._engine.raw_connection()
        connection: Any = raw.driver_connection
        # Detached from the pool: the connection stays open as long as the server runs.
        raw.detach()
        connection.rollback()
        connection.autocommit = True
        connection.execute(f"LISTEN {CHANNEL}")
        return connection

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self._connection is None:
                    self._connection = self._listen()
                    log.info("Database notifications are available again.")
                    failures = 0
                    self._publish(frozenset({EVERYTHING}))
                if not self._receive():
                    break
            except Exception as error:  # noqa: BLE001 - after any error: reconnect, then publish all topics
                if failures == 0:
                    log.warning("Database notifications are unavailable: %s", error)
                _close_connection(self._connection)
                self._connection = None
                if self._stopped(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)]):
                    break
                failures += 1
        _close_connection(self._connection)

    def _receive(self) -> bool:
        """Wait for the next notification; false once the server closes."""
        if self._ready(self._connection.fileno(), self._stop) == self._stop:
            return False
        topics: set[str] = set()
        for notification in self._connection.notifies(timeout=0):
            topics.update(self._read(notification.payload))
        if topics:
            self._publish(frozenset(topics))
        return True

    def _read(self, payload: str) -> Iterable[str]:
        try:
            sender, topics = json.loads(payload)
        except ValueError:
            log.warning("Unknown notification on channel %s.", CHANNEL)
            return {EVERYTHING}
        return () if sender == self._sender else [str(topic) for topic in topics]

    def _publish(self, topics: frozenset[str]) -> None:
        try:
            self._on_wake(topics)
        except Exception:
            log.exception("Publishing %s failed.", ", ".join(sorted(topics)))

    def _stopped(self, within_s: float) -> bool:
        return self._ready(self._stop, within_s=within_s) == self._stop

    @staticmethod
    def _ready(*files: int, within_s: float | None = None) -> int | None:
        """Wait for one of several files; if several are ready, the last one wins."""
        # Not `select.select`: it fails for descriptors above 1023, which a server with many workers has.
        with selectors.DefaultSelector() as selector:
            for file in files:
                selector.register(file, selectors.EVENT_READ)
            found = [key.fd for key, _ in selector.select(within_s)]
        return next((file for file in reversed(files) if file in found), None)


def _close_connection(connection: Any) -> None:
    if connection is not None:
        connection.close()


def _install_text(connection: Any) -> None:
    """Let a psycopg connection accept any text."""
    from psycopg.types.string import StrDumper, StrDumperUnknown  # noqa: PLC0415 -- the driver is an extra

    class Shown(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", SHOWN) if "\0" in obj else obj)

    class ShownUnknown(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", SHOWN) if "\0" in obj else obj)

    connection.adapters.register_dumper(str, Shown)
    connection.adapters.register_dumper(str, ShownUnknown)
