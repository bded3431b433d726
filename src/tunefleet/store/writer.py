"""One writer thread that commits together what is waiting.

A commit that reaches the disk costs as much for one operation as for sixty-four. If one of a group fails, the group is
rolled back and its operations are run again one by one: an operation may therefore run twice, and must touch nothing
but its connection. What has to happen outside (waking somebody, deleting a file) is handed to `wake` or `after_commit`
and runs once, when the commit is done.
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

from tunefleet.errors import StoreError
from tunefleet.store.faults import translate

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_GROUP: Final = 64
_TOPICS: Final = "tunefleet.topics"
_AFTER: Final = "tunefleet.after"
_NOTED: Final = "tunefleet.noted"

BeforeCommit = Callable[[Connection, Sequence[object]], None]
"""Looks at what the operations of a transaction have noted, and may write more into it."""


def wake(connection: Connection, *topics: str) -> None:
    """Wake whoever waits for a topic once the current operation is committed."""
    connection.info.setdefault(_TOPICS, set()).update(topics)


def after_commit(connection: Connection, action: Callable[[], object]) -> None:
    """Run an action in the writer thread once the current operation is committed, before the next one starts."""
    connection.info.setdefault(_AFTER, []).append(action)


def note(connection: Connection, things: Iterable[object]) -> None:
    """Show things to whoever looks at the current transaction before it is committed."""
    connection.info.setdefault(_NOTED, []).extend(things)


@contextmanager
def undone_if_failed(connection: Connection) -> Iterator[None]:
    """Undo a part of an operation that raises: what it wrote, noted and wanted to follow; the rest goes on.

    Raises:
        StoreError: If the database failed, which is not that part's own fault. Any other error is raised as it is.
    """
    info = connection.info
    woken, after, noted = set(info.get(_TOPICS, ())), list(info.get(_AFTER, ())), list(info.get(_NOTED, ()))
    try:
        with connection.begin_nested():
            yield
    except BaseException as error:
        info[_TOPICS], info[_AFTER], info[_NOTED] = woken, after, noted
        if isinstance(error, DBAPIError):
            raise translate(error) from error
        raise


@dataclass(slots=True)
class _Job(Generic[T]):
    operation: Callable[[Connection], T]
    future: Future[T] = field(default_factory=Future)


class Writer:
    """Runs operations in one thread, each group in one transaction.

    Args:
        engine: Gives the one connection that writes.
        on_wake: Called in the writer thread after a commit, with the topics that its operations named.
        before_commit: Called in the writer thread, in the transaction, with what its operations noted.
    """

    def __init__(
        self, engine: Engine, on_wake: Callable[[frozenset[str]], None], before_commit: BeforeCommit | None = None
    ) -> None:
        self._connection = engine.connect()
        self._on_wake = on_wake
        self._before_commit = before_commit
        self._queue: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self.observers: tuple[Callable[[int], None], Callable[[float], None]] | None = None
        """Told after each commit how many operations it had, and how many seconds they took."""
        self._thread = threading.Thread(target=self._run, name="tunefleet-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[Connection], T]) -> Future[T]:
        """Queue an operation; its result is there once it is committed."""
        if self._closed:
            raise StoreError("The store is closed.")
        job = _Job(operation)
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Run what is queued, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
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
                job = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Job[Any]]) -> bool:
        try:
            results = self._transact([job.operation for job in group])
        except Exception as error:  # noqa: BLE001 - whatever failed: each operation is run alone and reports for itself
            if len(group) == 1:
                group[0].future.set_exception(translate(error))
                return True
            log.debug("A group of %d operations is run again one by one: %s", len(group), error)
            return False
        for job, result in zip(group, results, strict=True):
            job.future.set_result(result)
        return True

    def _commit_alone(self, job: _Job[Any]) -> None:
        self._commit([job])

    def _transact(self, operations: list[Callable[[Connection], Any]]) -> list[Any]:
        info, started = self._connection.info, time.perf_counter()
        info[_TOPICS], info[_AFTER], info[_NOTED] = set(), [], []
        try:
            results = [operation(self._connection) for operation in operations]
            if self._before_commit is not None and info[_NOTED]:
                self._before_commit(self._connection, info[_NOTED])
            self._connection.commit()
        except BaseException:
            self._roll_back()
            raise
        if self.observers is not None:
            on_group, on_commit = self.observers
            on_group(len(operations))
            on_commit(time.perf_counter() - started)
        self._follow_up(frozenset(info[_TOPICS]), info[_AFTER])
        return results

    def _roll_back(self) -> None:
        try:
            self._connection.rollback()
        except DBAPIError:
            # SQLite has rolled back by itself (a full disk); the connection is good for the next transaction.
            log.warning("A roll-back failed.", exc_info=True)

    def _follow_up(self, topics: frozenset[str], actions: list[Callable[[], object]]) -> None:
        for action in actions:
            try:
                action()
            except Exception:
                log.exception("What had to follow a commit failed.")
        if topics:
            try:
                self._on_wake(topics)
            except Exception:
                log.exception("Waking %s failed.", ", ".join(sorted(topics)))
