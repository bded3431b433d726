"""One writer thread with group commit.

A commit that reaches the disk costs as much for one operation as for sixty-four. If one operation of a group fails, the
group is rolled back and its operations are run again one by one: an operation may therefore run twice, and must have no
side effects outside its connection. Side effects (publishing a topic, deleting a file) are registered with `wake` or
`after_commit` and run once, after the commit.

A group whose connection broke before its commit is run again once on a new connection. If it broke during the commit,
the outcome is unknown, and each operation fails with an error that says so.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tunefleet.db.engine.errors import is_lost, translate, unsure
from tunefleet.errors import StoreError

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_GROUP: Final = 64
EVERYTHING: Final = "*"
"""The wildcard topic, published after notifications may have been lost."""
_TOPICS: Final = "tunefleet.topics"
_AFTER: Final = "tunefleet.after"
_NOTED: Final = "tunefleet.noted"
_LATER: Final = "tunefleet.later"

# Receives the notes of a transaction's operations, and may write in the same transaction.
BeforeCommit = Callable[[Connection, Sequence[object]], None]
# Notifies other servers of the topics, with the commit.
Announce = Callable[[Connection, frozenset[str]], None]


def wake(connection: Connection, *topics: str) -> None:
    """Publish topics after the current operation is committed."""
    connection.info.setdefault(_TOPICS, set()).update(topics)


def after_commit(connection: Connection, action: Callable[[], object]) -> None:
    """Run an action in the writer thread after the current operation is committed, before the next one starts."""
    connection.info.setdefault(_AFTER, []).append(action)


def later(connection: Connection, operation: Callable[[Connection], object]) -> None:
    """Run another operation in a transaction of its own after the current one is committed.

    It is lost if the server stops before that.
    """
    connection.info.setdefault(_LATER, []).append(operation)


def note(connection: Connection, things: Iterable[object]) -> None:
    """Pass objects to the `before_commit` callback of the current transaction."""
    connection.info.setdefault(_NOTED, []).extend(things)


@contextmanager
def undone_if_failed(connection: Connection) -> Iterator[None]:
    """Undo a part of an operation that raises, including its registered side effects; the rest continues.

    Raises:
        StoreError: If the database failed. Any other error is raised unchanged.
    """
    info = connection.info
    woken, after, noted = set(info.get(_TOPICS, ())), list(info.get(_AFTER, ())), list(info.get(_NOTED, ()))
    further = list(info.get(_LATER, ()))
    try:
        with connection.begin_nested():
            yield
    except BaseException as error:
        info[_TOPICS], info[_AFTER], info[_NOTED], info[_LATER] = woken, after, noted, further
        if isinstance(error, DBAPIError):
            raise translate(error) from error
        raise


@dataclass(slots=True)
class _Job(Generic[T]):
    operation: Callable[[Connection], T]
    future: Future[T] = field(default_factory=Future)


class _UnsureError(Exception):
    """The connection broke during a commit: its outcome is unknown."""


def _fail(group: Iterable[_Job[Any]], error: BaseException) -> None:
    for job in group:
        job.future.set_exception(unsure(error) if isinstance(error, _UnsureError) else translate(error))


def _log_failure(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("An operation after a commit failed: %s", error)


class Writer:
    """Runs operations in one thread, each group in one transaction."""

    def __init__(
        self,
        engine: Engine,
        on_wake: Callable[[frozenset[str]], None],
        before_commit: BeforeCommit | None = None,
        announce: Announce | None = None,
    ) -> None:
        self._engine = engine
        self._connection: Connection | None = engine.connect()
        self._on_wake = on_wake
        self._before_commit = before_commit
        self._announce = announce
        self._queue: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self.observers: tuple[Callable[[int], None], Callable[[float], None]] | None = None
        """Called after each commit with the number of operations and their duration in seconds."""
        self._thread = threading.Thread(target=self._run, name="tunefleet-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Queue an operation; the future gets its result after the commit."""
        if self._closed:
            raise StoreError("The database is closed.")
        job = _Job(operation)
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Run queued operations, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            if self._connection is not None:
                self._connection.close()

    def _run(self) -> None:
        ending = False
        while not ending:
            group, ending = self._next_group()
            if group and not self._commit(group):
                for job in group:
                    self._commit_alone(job)

    def _next_group(self) -> tuple[list[_Job[Any]], bool]:
        job = self._queue.get()
        group: list[_Job[Any]] = []
        while job is not None:
            if job.future.set_running_or_notify_cancel():
                group.append(job)
            if len(group) == MAX_GROUP:
                return group, False
            try:
                # Never wait for more operations: a group is what has queued up during the previous commit.
                job = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Job[Any]]) -> bool:
        try:
            results = self._transact_again_if_lost([job.operation for job in group])
        except _UnsureError as error:
            _fail(group, error)
            # If it was committed, other servers were notified but this one was not.
            self._wake(frozenset({EVERYTHING}))
            return True
        except Exception as error:  # noqa: BLE001 - after any error each operation is run alone and reports its own
            if len(group) == 1 or is_lost(error):
                _fail(group, error)
                return True
            log.debug("Running a group of %d operations again one by one: %s", len(group), error)
            return False
        for job, result in zip(group, results, strict=True):
            job.future.set_result(result)
        return True

    def _commit_alone(self, job: _Job[Any]) -> None:
        self._commit([job])

    def _transact_again_if_lost(self, operations: list[Callable[[Connection], Any]]) -> list[Any]:
        try:
            return self._transact(operations)
        except Exception as error:
            if not is_lost(error):
                raise
            log.warning("Lost the database connection; running the transaction again: %s", error)
        return self._transact(operations)

    def _transact(self, operations: list[Callable[[Connection], Any]]) -> list[Any]:
        if self._connection is None:
            self._connection = self._engine.connect()
        connection = self._connection
        info, started = connection.info, time.perf_counter()
        info[_TOPICS], info[_AFTER], info[_NOTED], info[_LATER] = set(), [], [], []
        committing = False
        try:
            results = [operation(connection) for operation in operations]
            if self._before_commit is not None and info[_NOTED]:
                self._before_commit(connection, info[_NOTED])
            topics, after, further = frozenset(info[_TOPICS]), info[_AFTER], info[_LATER]
            if self._announce is not None and topics:
                self._announce(connection, topics)
            # From here on the server may have committed even if no confirmation arrives.
            committing = True
            connection.commit()
        except BaseException as error:
            self._roll_back(connection, error)
            if committing and is_lost(error):
                raise _UnsureError from error
            raise
        if self.observers is not None:
            on_group, on_commit = self.observers
            on_group(len(operations))
            on_commit(time.perf_counter() - started)
        self._follow_up(topics, after)
        for operation in further:
            job = _Job(operation)
            job.future.add_done_callback(_log_failure)
            self._queue.put(job)
        return results

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        try:
            connection.rollback()
            if is_lost(error):
                connection.close()
                self._connection = None
        except DBAPIError:
            # SQLite has rolled back already (for example on a full disk) and its connection stays usable; another
            # database's may not.
            log.warning("A rollback failed.", exc_info=True)
            if self._announce is not None:
                connection.invalidate()
                self._connection = None

    def _follow_up(self, topics: frozenset[str], actions: list[Callable[[], object]]) -> None:
        for action in actions:
            try:
                action()
            except Exception:
                log.exception("An action after a commit failed.")
        if topics:
            self._wake(topics)

    def _wake(self, topics: frozenset[str]) -> None:
        try:
            self._on_wake(topics)
        except Exception:
            log.exception("Publishing %s failed.", ", ".join(sorted(topics)))
