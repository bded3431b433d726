"""Change notifications between servers on one PostgreSQL database, with NOTIFY and LISTEN.

Notifications are sent with the commit of the change, or not at all. While the listening connection is down they are
lost, so that all topics are published after a reconnect.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from sqlalchemy import URL, Connection

from tunefleet.db.engine.postgres import engine
from tunefleet.db.engine.writer import EVERYTHING

log = logging.getLogger(__name__)

CHANNEL: Final = "tunefleet_wake"
MAX_PAYLOAD_BYTES: Final = 7_900
"""PostgreSQL limits a payload to less than 8,000 bytes."""
# Pauses between reconnects; the last one repeats.
_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0)


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
                _close(self._connection)
                self._connection = None
                if self._stopped(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)]):
                    break
                failures += 1
        _close(self._connection)

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
            log.warning("Unknown notification on the channel %s.", CHANNEL)
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


def _close(connection: Any) -> None:
    if connection is not None:
        connection.close()
