"""What the worker has to say: accepts, finishes, outcomes, repeated until the server has taken them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tunefleet.wire.link import CommandOutcome, ExchangeReply, ExchangeRequest, Finish, Reached, SlotClass


@dataclass(slots=True)
class _Said:
    """What one request carried, to strike out once it was answered."""

    outcomes: tuple[CommandOutcome, ...] = ()
    reached: tuple[Reached, ...] = ()


@dataclass(slots=True)
class Draft:
    """A request, and the version of the outbox that it speaks for."""

    request: ExchangeRequest
    version: int
    said: _Said = field(default_factory=_Said)


class Outbox:
    """Thread-safe. `version` grows with each thing that is worth an exchange of its own.

    Args:
        worker_id: Who speaks.
        session: Which process of it.
    """

    def __init__(self, worker_id: str, session: str) -> None:
        self._worker_id = worker_id
        self._session = session
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._accepts: dict[str, None] = {}
        self._finishes: dict[str, Finish] = {}
        self._outcomes: list[CommandOutcome] = []
        self._reached: dict[str, Reached] = {}
        self._version = 0

    @property
    def changed(self) -> threading.Condition:
        """Notified, under its lock, at each change; threads that exchange wait on it."""
        return self._changed

    @property
    def version(self) -> int:
        """How many changes there were; read under the lock of `changed`."""
        return self._version

    def accept(self, token: str) -> None:
        """Say that an offer is taken; it must be on disk by now unless it is light."""
        with self._changed:
            if token not in self._finishes:
                self._accepts[token] = None
                self._touch()

    def finish(self, finish: Finish) -> None:
        """Say that an attempt has ended; implies its accept."""
        with self._changed:
            self._accepts.pop(finish.token, None)
            self._finishes[finish.token] = finish
            self._touch()

    def hold_back(self, token: str) -> None:
        """Do not repeat a finish that the server cannot take yet."""
        with self._lock:
            self._finishes.pop(token, None)

    def outcome(self, outcome: CommandOutcome) -> None:
        """Say what became of a command."""
        with self._changed:
            self._outcomes.append(outcome)
            self._touch()

    def reach(self, reached: Reached) -> None:
        """Say that an attempt is on its way to the desired state of a generation, even after a restart."""
        with self._changed:
            self._reached[reached.token] = reached
            self._touch()

    def poke(self) -> None:
        """Something else changed, such as a free slot."""
        with self._changed:
            self._touch()

    def forget(self, token: str) -> None:
        """Say nothing more about an attempt."""
        with self._lock:
            self._accepts.pop(token, None)
            self._finishes.pop(token, None)
            self._reached.pop(token, None)

    def draft(self, *, holding: tuple[str, ...], want: dict[SlotClass, int], wait_s: float) -> Draft:
        """Write down all there is to say. Call it under the lock of `changed`."""
        said = _Said(tuple(self._outcomes), tuple(self._reached.values()))
        request = ExchangeRequest(
            worker_id=self._worker_id,
            session=self._session,
            wait_s=wait_s,
            holding=holding,
            accepts=tuple(self._accepts),
            finishes=tuple(self._finishes.values()),
            outcomes=said.outcomes,
            reached=said.reached,
            want=want,
        )
        return Draft(request, self._version, said)

    def answered(self, draft: Draft, reply: ExchangeReply) -> None:
        """Strike out what the server has taken."""
        with self._lock:
            for token in (*reply.accepted, *reply.finished, *reply.drop):
                self._accepts.pop(token, None)
            for token in (*reply.finished, *reply.drop):
                self._finishes.pop(token, None)
            for outcome in draft.said.outcomes:
                if outcome in self._outcomes:
                    self._outcomes.remove(outcome)
            for reached in draft.said.reached:
                if self._reached.get(reached.token) == reached:
                    del self._reached[reached.token]

    def _touch(self) -> None:
        self._version += 1
        self._changed.notify_all()
