"""One simulated worker: uses the real protocol, with a timer in place of training."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.worker_link import (
    Command,
    CommandOutcome,
    Desired,
    ExchangeReply,
    ExchangeRequest,
    JournalBatch,
    Load,
    Offer,
    Reached,
    RegisterRequest,
    SlotClass,
)
from tunefleet.simulation.held_attempt import EVERY_S, HeldAttempt, Trace
from tunefleet.simulation.plan import Plan, capabilities, load_of, worker_id
from tunefleet.simulation.poll_exchange import Poller
from tunefleet.transport.base import AsyncWorkerLink

# An exchange held for at least this share of its time was a renewal without messages.
_HELD_SHARE: Final = 0.9


class Ledger(Protocol):
    """Records the events of workers."""

    def exchanged(self, took_s: float, *, has_messages: bool, renewed: bool) -> None:
        """Count an exchange; one with messages is answered immediately, so that its duration is meaningful."""

    def offered(self) -> None:
        """Count an offer."""

    def ended(self, trace: Trace) -> None:
        """Record an attempt that has ended or was dropped."""

    def fault(self, error: TunefleetError) -> None:
        """Count an error that is retried."""

    def foreign(self, task_id: str) -> None:
        """Record an offered task of another run; it was released."""


class Ship(Protocol):
    """Delivers a journal."""

    async def __call__(self, task_id: str, token: str, batch: JournalBatch, /) -> int:
        """Return the next sequence number that the server expects."""


@dataclass(slots=True)
class _Outbox:
    """Pending messages; each is repeated until a reply confirms it."""

    accepts: dict[str, None] = field(default_factory=dict)
    outcomes: list[CommandOutcome] = field(default_factory=list)
    reached: dict[str, Reached] = field(default_factory=dict)
    load: Load | None = None


class SimulatedWorker:
    """Registers, exchanges, holds tasks for their time, and leaves."""

    def __init__(
        self, plan: Plan, number: int, link: AsyncWorkerLink, ledger: Ledger, *, ship: Ship | None = None,
        link_name: str = "http", on_fatal: Callable[[TunefleetError], None],
    ) -> None:  # fmt: skip
        self.id = worker_id(plan, number)
        self._plan, self._link, self._ledger, self._ship = plan, link, ledger, ship
        self._has = capabilities(plan, number, link_name)
        self._rng = random.Random(f"{plan.seed}-{number}-runs")
        self._session = uuid.uuid4().hex
        self._held: dict[str, HeldAttempt] = {}
        self._outbox = _Outbox()
        self._poller = Poller(link, self, self._rng, on_fatal)
        self._draining = False
        self._heartbeat: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Register, and begin to exchange.

        Raises:
            TunefleetError: If the server rejects it.
        """
        await self._poller.start()
        self._report_load(first=True)

    async def leave(self) -> None:
        """Stop exchanging, leave, and close the connection; the server places held tasks again."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        await self._poller.stop()
        for held in self._held.values():
            held.cancel()
            self._ledger.ended(held.trace(None))
        try:
            await self._link.exchange(ExchangeRequest(worker_id=self.id, session=self._session, leaves=True))
        except TunefleetError as error:
            self.fault(error)
        await self._link.close()

    async def register(self) -> float:
        """Register with the held attempts; returns the maximum hold time of an exchange."""
        request = RegisterRequest(
            worker_id=self.id, session=self._session, state_id=f"state-{self.id}", capabilities=self._has,
            holding=tuple(token for token, held in self._held.items() if held.accepted_at or held.finish),
        )  # fmt: skip
        reply = await self._link.register(request)
        for token in reply.drop:
            self._drop(token)
        return reply.hold_s

    def fault(self, error: TunefleetError) -> None:
        """Record an error that is retried."""
        self._ledger.fault(error)

    def draft(self, wait_s: float) -> ExchangeRequest:
        """Return a request with all pending messages."""
        outbox, finishes = self._outbox, tuple(held.finish for held in self._held.values() if held.finish)
        drained = self._draining and not self._held
        return ExchangeRequest(
            worker_id=self.id,
            session=self._session,
            wait_s=0.0 if drained else wait_s,
            holding=tuple(token for token, held in self._held.items() if held.accepted_at and not held.finish),
            accepts=tuple(outbox.accepts),
            finishes=finishes,
            outcomes=tuple(outbox.outcomes),
            reached=tuple(outbox.reached.values()),
            want=self._want(),
            draining=self._draining,
            leaves=drained,
            load=outbox.load,
        )

    def _want(self) -> dict[SlotClass, int]:
        free = dict(self._has.slots)
        for held in self._held.values():
            if held.finish is None:
                free[held.offer.slot_class] -= 1
        return {slot: 0 if self._draining else max(0, count) for slot, count in free.items()}

    def _report_load(self, *, first: bool = False) -> None:
        if not first:
            self._outbox.load = load_of(self._has, len(self._held))
            self._poller.notify()
        # A random first delay: real workers start at different times and do not report their loads together.
        after_s = self._plan.load_every_s * (self._rng.random() if first else 1.0)
        self._heartbeat = asyncio.get_running_loop().call_later(after_s, self._report_load)

    def on_reply(self, request: ExchangeRequest, reply: ExchangeReply, took_s: float) -> None:
        """Handle a reply."""
        has_messages = bool(request.accepts or request.finishes)
        held_full = request.wait_s > 0 and took_s >= _HELD_SHARE * request.wait_s
        renewed = not has_messages and (held_full or request.load is not None)
        self._ledger.exchanged(took_s, has_messages=has_messages, renewed=renewed)
        now, outbox = time.monotonic(), self._outbox
        # Confirmed with the reply; newer ones stay for the next request.
        outbox.outcomes = [each for each in outbox.outcomes if each not in request.outcomes]
        outbox.reached = {t: each for t, each in outbox.reached.items() if each not in request.reached}
        outbox.load = None if outbox.load is request.load else outbox.load
        for token in reply.drop:
            self._drop(token)
        for token in reply.accepted:
            self._accepted(token, now)
        for token in reply.finished:
            self._finished(token, now)
        for late in reply.behind:
            self.fault(UnreachableError(f"The server lacks records of {late.launch}."))
        for offer in reply.offers:
            self._offered(offer)
        for desired in reply.desired:
            self._apply_desired(desired)
        for command in reply.commands:
            self._execute(command)
        if reply.drain is not None and reply.drain != self._draining:
            self._draining = reply.drain
            self._poller.notify()
        if request.leaves:
            self._poller.close()

    def _offered(self, offer: Offer) -> None:
        if offer.token in self._held:
            return
        held = HeldAttempt(offer, self._plan.task_s * self._rng.uniform(0.8, 1.2))
        self._held[offer.token] = held
        if self._plan.tag not in offer.spec.get("resources", {}).get("tags", ()):
            self._ledger.foreign(offer.task_id)
            held.ended("released", TaskReason.RELEASED)
        elif held.runs_s == 0:
            self._ledger.offered()
            held.ended("completed", TaskReason.FINISHED)  # no run time: accept and finish are one message
        else:
            self._ledger.offered()
            self._outbox.accepts[offer.token] = None
        self._poller.notify()

    def _accepted(self, token: str, now: float) -> None:
        self._outbox.accepts.pop(token, None)
        held = self._held.get(token)
        if held is None or held.accepted_at is not None or held.finish is not None:
            return
        held.accepted_at = now
        if self._plan.metrics_per_s and self._ship is not None:
            held.journal = asyncio.get_running_loop().create_task(self._run_with_journal(held))
        else:
            held.start(lambda: self._end(held))

    def _end(self, held: HeldAttempt, reason: TaskReason = TaskReason.FINISHED) -> None:
        held.ended("completed", reason)
        self._poller.notify()

    def _finished(self, token: str, now: float) -> None:
        held = self._held.pop(token, None)
        self._forget(token)
        if held is not None:
            held.cancel()
            self._ledger.ended(held.trace(now))
            self._poller.notify()  # a slot is free again

    def _drop(self, token: str) -> None:
        held = self._held.pop(token, None)
        self._forget(token)
        if held is not None:
            held.cancel()
            self._ledger.ended(held.trace(None))
            self._poller.notify()

    def _forget(self, token: str) -> None:
        self._outbox.accepts.pop(token, None)
        self._outbox.reached.pop(token, None)

    def _apply_desired(self, desired: Desired) -> None:
        held = self._held.get(desired.token)
        if held is None:
            return
        self._outbox.reached[desired.token] = Reached(token=desired.token, generation=desired.generation)
        if desired.action == "cancel":
            held.ended("cancelled", TaskReason.CANCELLED_BY_USER)
        elif desired.action == "pause" and held.offer.slot_class == "job":
            held.ended("paused", TaskReason.PAUSED)  # a light task ends before a pause could help
        self._poller.notify()

    def _execute(self, command: Command) -> None:
        held = self._held.get(command.token)
        if held is None:
            state, message = "failed", "A simulated worker executes commands for its own tasks only."
        else:
            state, message = "applied", "simulated"
            if command.command in {"graceful_stop", "save_and_stop"}:
                held.ended("completed", TaskReason.STOPPED_EARLY)
        outcome = CommandOutcome.model_validate({"command_id": command.command_id, "state": state, "message": message})
        if outcome not in self._outbox.outcomes:
            self._outbox.outcomes.append(outcome)
        self._poller.notify()

    async def _run_with_journal(self, held: HeldAttempt) -> None:
        """Wait for the run time of a task, and deliver its simulated metrics meanwhile."""
        assert self._ship is not None
        ends_at = (held.accepted_at or time.monotonic()) + held.runs_s
        while held.finish is None:
            left_s = ends_at - time.monotonic()
            await asyncio.sleep(max(0.0, min(EVERY_S, left_s)))
            batch = held.batch(self._plan.metrics_per_s, now=time.monotonic())
            try:
                if batch is not None:
                    held.shipped = await self._ship(held.offer.task_id, held.offer.token, batch)
            except TunefleetError as error:
                self._ledger.fault(error)  # an exchange reports a revoked token
                await asyncio.sleep(EVERY_S)
                continue
            if left_s <= 0:
                self._end(held)
                return
