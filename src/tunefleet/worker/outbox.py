"""Outgoing messages of the worker: accepts, finishes, outcomes, repeated until the server has stored them."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.worker_link import (
    CommandOutcome,
    ExchangeReply,
    ExchangeRequest,
    Finish,
    Load,
    Reached,
    SlotClass,
)

logger = logging.getLogger(__name__)

# Size limit for the finishes of one exchange: half of the server's default body limit.
MAX_FINISHES_BYTES: Final = 4 << 20
_MAX_WORDS: Final = 64 << 10
# Maximum characters of a status message.
_MAX_NOTE: Final = 1000
_FETCHING_EVERY_S: Final = 1.0


@dataclass(slots=True)
class _SentItems:
    """What one request contained, to be removed once it was answered."""

    outcomes: tuple[CommandOutcome, ...] = ()
    reached: tuple[Reached, ...] = ()
    discarded: tuple[str, ...] = ()
    whole: bool = True


@dataclass(slots=True)
class Draft:
    """A request, and the version of the outbox that it was built from."""

    request: ExchangeRequest
    version: int
    sent: _SentItems = field(default_factory=_SentItems)


class Outbox:
    """Thread-safe. `version` grows with each change that requires a new exchange."""

    def __init__(self, worker_id: str, session: str) -> None:
        self._worker_id = worker_id
        self._session = session
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._accepts: dict[str, str | None] = {}
        self._finishes: dict[str, Finish] = {}
        self._sizes: dict[str, int] = {}
        self._outcomes: list[CommandOutcome] = []
        self._reached: dict[str, Reached] = {}
        self._discarded: set[str] = set()
        self._stalled_since: dict[str, float] = {}
        self._held_up: dict[str, str] = {}
        self._fetching: dict[str, tuple[float, str]] = {}
        self._last_reply_at = -1e9
        self._load: Load | None = None
        self._version = 0

    @property
    def changed(self) -> threading.Condition:
        """Notified, under its lock, at each change; the polling threads wait on it."""
        return self._changed

    @property
    def finishing(self) -> tuple[str, ...]:
        """Tokens of the attempts whose end the server has not stored yet."""
        with self._lock:
            return tuple(self._finishes)

    @property
    def version(self) -> int:
        """Number of changes; read under the lock of `changed`."""
        return self._version

    def accept(self, token: str, point: str | None = None) -> None:
        """Report that an offer is accepted; it must be on disk before, unless it is light."""
        with self._changed:
            if token not in self._finishes:
                self._accepts[token] = point
                self._touch()

    def finish(self, finish: Finish) -> None:
        """Report the end of an attempt; implies its accept. A message too large for an exchange is shortened."""
        finish, size = _fitted(finish)
        with self._changed:
            self._accepts.pop(finish.token, None)
            self._finishes[finish.token] = finish
            self._sizes[finish.token] = size
            self._touch()

    def hold_back(self, token: str) -> None:
        """Stop repeating a finish that the server cannot store yet."""
        with self._lock:
            self._finishes.pop(token, None)

    def outcome(self, outcome: CommandOutcome) -> None:
        """Report the outcome of a command."""
        with self._changed:
            self._outcomes.append(outcome)
            self._touch()

    def reach(self, reached: Reached) -> None:
        """Report that the desired state of a generation is stored, so that it is applied even after a restart."""
        with self._changed:
            self._reached[reached.token] = reached
            self._touch()

    def discarded(self, task_id: str) -> None:
        """Report that the folder of a removed task is deleted."""
        with self._changed:
            self._discarded.add(task_id)
            self._touch()

    def stalled(self, token: str, for_s: float | None) -> None:
        """Report for how many seconds a job has written nothing; None if it is no longer stalled."""
        with self._changed:
            if for_s is not None:
                self._stalled_since[token] = time.monotonic() - for_s
            elif self._stalled_since.pop(token, None) is None:
                return
            self._touch()

    def held_up(self, token: str, why: str | None) -> None:
        """Report why a delivery is delayed, without secrets; None if it is no longer delayed."""
        with self._changed:
            before = self._held_up.pop(token, None)
            if why:
                self._held_up[token] = why[:_MAX_NOTE]
            if self._held_up.get(token) != before:
                self._touch()

    def fetching(self, token: str, what: str | None, *, is_new: bool = True) -> None:
        """Report which input an attempt fetches before its job starts.

        Args:
            what: As a message; None if it fetches nothing any more.
            is_new: Whether it is a new download rather than progress, which is reported once a second.
        """
        now = time.monotonic()
        with self._changed:
            if what is None:
                if self._fetching.pop(token, None) is not None:
                    self._touch()
                return
            reported_at, _ = self._fetching.get(token, (-_FETCHING_EVERY_S, ""))
            if is_new or now - reported_at >= _FETCHING_EVERY_S:
                # The first progress report may follow a new download immediately.
                self._fetching[token] = -_FETCHING_EVERY_S if is_new else now, what[:_MAX_NOTE]
                self._touch()

    def answered_within(self, seconds: float) -> bool:
        """Whether the server has answered an exchange within this time."""
        return time.monotonic() - self._last_reply_at < seconds

    def load(self, load: Load) -> None:
        """Report the load of the worker; replaces a reading that was not sent yet."""
        with self._changed:
            self._load = load
            self._touch()

    def poke(self) -> None:
        """Trigger an exchange for any other change, such as a free slot."""
        with self._changed:
            self._touch()

    def forget(self, token: str) -> None:
        """Remove all messages about an attempt."""
        with self._lock:
            self._accepts.pop(token, None)
            self._finishes.pop(token, None)
            self._reached.pop(token, None)
            self._stalled_since.pop(token, None)
            self._held_up.pop(token, None)
            self._fetching.pop(token, None)

    def draft(
        self,
        *,
        holding: tuple[str, ...],
        want: dict[SlotClass, int],
        wait_s: float,
        delivering: tuple[str, ...] = (),
        draining: bool = False,
    ) -> Draft:
        """Build the next request, limited to the size of one exchange. Call it under the lock of `changed`."""
        finishes = self._first_finishes()
        sent = _SentItems(
            tuple(self._outcomes),
            tuple(self._reached.values()),
            tuple(sorted(self._discarded)),
            whole=len(finishes) == len(self._finishes),
        )
        request = ExchangeRequest(
            worker_id=self._worker_id,
            session=self._session,
            wait_s=wait_s,
            holding=holding,
            accepts=tuple(self._accepts),
            points={token: point for token, point in self._accepts.items() if point is not None},
            finishes=finishes,
            outcomes=sent.outcomes,
            reached=sent.reached,
            discarded=sent.discarded,
            stalled={token: time.monotonic() - since for token, since in self._stalled_since.items()},
            delivering=dict.fromkeys(delivering, "") | self._held_up,
            fetching={token: what for token, (_, what) in self._fetching.items()},
            want=want,
            draining=draining,
            load=self._load,
        )
        return Draft(request, self._version, sent)

    def answered(self, draft: Draft, reply: ExchangeReply) -> None:
        """Remove what the server has stored."""
        # Only what this draft contained: another exchange may be in flight, and newer messages may have been added.
        with self._lock:
            self._last_reply_at = time.monotonic()
            for token in (*reply.accepted, *reply.finished, *reply.drop):
                self._accepts.pop(token, None)
            for token in (*reply.finished, *reply.drop):
                self._finishes.pop(token, None)
            for outcome in draft.sent.outcomes:
                if outcome in self._outcomes:
                    self._outcomes.remove(outcome)
            for reached in draft.sent.reached:
                if self._reached.get(reached.token) == reached:
                    del self._reached[reached.token]
            self._discarded.difference_update(draft.sent.discarded)
            if self._load is draft.request.load:
                self._load = None
            self._sizes = {token: size for token, size in self._sizes.items() if token in self._finishes}
            if not draft.sent.whole:
                self._touch()

    def _first_finishes(self) -> tuple[Finish, ...]:
        chosen: list[Finish] = []
        left = MAX_FINISHES_BYTES
        for token, finish in self._finishes.items():
            left -= self._sizes[token]
            if left < 0:
                break
            chosen.append(finish)
        return tuple(chosen)

    def _touch(self) -> None:
        self._version += 1
        self._changed.notify_all()


def _fitted(finish: Finish) -> tuple[Finish, int]:
    """Return a finish that fits into an exchange, and its size in bytes."""
    size = _size(finish)
    if size <= MAX_FINISHES_BYTES:
        return finish, size
    changes: dict[str, object] = {
        "error": finish.error and finish.error[:_MAX_WORDS],
        "detail": finish.detail and finish.detail[-_MAX_WORDS:],
    }
    if _size(finish.model_copy(update=changes)) > MAX_FINISHES_BYTES:
        error = f"The result has {size:,} bytes (limit: {MAX_FINISHES_BYTES:,}). Publish large data as an artifact."
        logger.warning("Failing an attempt: %s", error)
        changes |= {"outcome": "failed", "reason": TaskReason.BAD_INPUT.value, "error": error, "result": {}}
    short = finish.model_copy(update=changes)
    return short, _size(short)


def _size(finish: Finish) -> int:
    return len(finish.model_dump_json())
