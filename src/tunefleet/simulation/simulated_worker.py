"""One simulated worker: it keeps the protocol, and where a real one would train it looks at a clock."""

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
from tunefleet.simulation import profile
from tunefleet.simulation.held_attempt import EVERY_S, Held, Trace
from tunefleet.simulation.plan import Plan
from tunefleet.simulation.poll_exchange import Hands
from tunefleet.transport.base import AsyncWorkerLink

# An exchange that was held for this part of its time, or longer, had nothing to tell.
_HELD_OUT: Final = 0.9


class Ledger(Protocol):
    """Where workers write down what they see."""

    def exchanged(self, took_s: float, *, spoke: bool, renewed: bool) -> None:
        """Count an exchange; one that spoke is answered at once, so that its time says something."""

    def offered(self) -> None:
        """Count an offer."""

    def ended(self, trace: Trace) -> None:
        """Note an attempt that the server has taken back."""

    def fault(self, error: TunefleetError) -> None:
        """Count something that did not work and is tried again."""

    def foreign(self, task_id: str) -> None:
        """Note an offer of a task that is not of this run; it was given back untouched."""


class Ship(Protocol):
    """Delivers a journal."""

    async def __call__(self, task_id: str, token: str, batch: JournalBatch, /) -> int:
        """Return the next sequence number that the server takes."""


@dataclass(slots=True)
class _Outbox:
    """What is to be said; each thing is repeated until an answer confirms it."""

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
        self.id = profile.worker_id(plan, number)
        self._plan, self._link, self._ledger, self._ship = plan, link, ledger, ship
        self._has = profile.capabilities(plan, number, link_name)
        self._chance = random.Random(f"{plan.seed}-{number}-runs")
        self._session = uuid.uuid4().hex
        self._held: dict[str, Held] = {}
        self._outbox = _Outbox()
        self._hands = Hands(link, self, self._chance, on_fatal)
        self._draining = False
        self._heartbeat: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Register, and begin to exchange.

        Raises:
            TunefleetError: If the server does not take it.
        """
        await self._hands.start()
        self._tell_load(first=True)

    async def leave(self) -> None:
        """Stop exchanging, say the last word, and close the link; what it still holds is placed anew."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        await self._hands.stop()
        for held in self._held.values():
            held.let_go()
            self._ledger.ended(held.trace(None))
        try:
            await self._link.exchange(ExchangeRequest(worker_id=self.id, session=self._session, leaves=True))
        except TunefleetError as error:
            self.fault(error)
        await self._link.close()

    async def register(self) -> float:
        """Register with what it holds; returns for how long an exchange may be held."""
        request = RegisterRequest(
            worker_id=self.id, session=self._session, state_id=f"state-{self.id}", capabilities=self._has,
            holding=tuple(token for token, held in self._held.items() if held.accepted_at or held.finish),
        )  # fmt: skip
        reply = await self._link.register(request)
        for token in reply.drop:
            self._drop(token)
        return reply.hold_s

    def fault(self, error: TunefleetError) -> None:
        """Note something that is tried again."""
        self._ledger.fault(error)

    def draft(self, wait_s: float) -> ExchangeRequest:
        """Write down all that there is to say."""
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

    def _tell_load(self, *, first: bool = False) -> None:
        if not first:
            self._outbox.load = profile.load_of(self._has, len(self._held))
            self._hands.news()
        # Real workers start at different times, and so do not tell their loads together.
        after_s = self._plan.load_every_s * (self._chance.random() if first else 1.0)
        self._heartbeat = asyncio.get_running_loop().call_later(after_s, self._tell_load)

    def heard(self, request: ExchangeRequest, reply: ExchangeReply, took_s: float) -> None:
        """Act on an answer."""
        spoke = bool(request.accepts or request.finishes)
        held_out = request.wait_s > 0 and took_s >= _HELD_OUT * request.wait_s
        renewed = not spoke and (held_out or request.load is not None)
        self._ledger.exchanged(took_s, spoke=spoke, renewed=renewed)
        now, outbox = time.monotonic(), self._outbox
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
            self._obey(desired)
        for command in reply.commands:
            self._carry_out(command)
        if reply.drain is not None and reply.drain != self._draining:
            self._draining = reply.drain
            self._hands.news()
        if request.leaves:
            self._hands.rest()

    def _offered(self, offer: Offer) -> None:
        if offer.token in self._held:
            return
        held = Held(offer, self._plan.task_s * self._chance.uniform(0.8, 1.2))
        self._held[offer.token] = held
        if self._plan.tag not in offer.spec.get("resources", {}).get("tags", ()):
            self._ledger.foreign(offer.task_id)
            held.ended("released", TaskReason.RELEASED)
        elif held.runs_s == 0:
            self._ledger.offered()
            held.ended("completed", TaskReason.FINISHED)  # what is done at once is said in one word
        else:
            self._ledger.offered()
            self._outbox.accepts[offer.token] = None
        self._hands.news()

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

    def _end(self, held: Held, reason: TaskReason = TaskReason.FINISHED) -> None:
        held.ended("completed", reason)
        self._hands.news()

    def _finished(self, token: str, now: float) -> None:
        held = self._held.pop(token, None)
        self._forget(token)
        if held is not None:
            held.let_go()
            self._ledger.ended(held.trace(now))
            self._hands.news()  # there is room again

    def _drop(self, token: str) -> None:
        held = self._held.pop(token, None)
        self._forget(token)
        if held is not None:
            held.let_go()
            self._ledger.ended(held.trace(None))
            self._hands.news()

    def _forget(self, token: str) -> None:
        self._outbox.accepts.pop(token, None)
        self._outbox.reached.pop(token, None)

    def _obey(self, desired: Desired) -> None:
        held = self._held.get(desired.token)
        if held is None:
            return
        self._outbox.reached[desired.token] = Reached(token=desired.token, generation=desired.generation)
        if desired.action == "cancel":
            held.ended("cancelled", TaskReason.CANCELLED_BY_USER)
        elif desired.action == "pause" and held.offer.slot_class == "job":
            held.ended("paused", TaskReason.PAUSED)  # a light task is over before a pause could be of use
        self._hands.news()

    def _carry_out(self, command: Command) -> None:
        held = self._held.get(command.token)
        if held is None:
            state, message = "failed", "A simulated worker carries out commands for its tasks only."
        else:
            state, message = "applied", "simulated"
            if command.command in {"graceful_stop", "save_and_stop"}:
                held.ended("completed", TaskReason.STOPPED_EARLY)
        told = CommandOutcome.model_validate({"command_id": command.command_id, "state": state, "message": message})
        if told not in self._outbox.outcomes:
            self._outbox.outcomes.append(told)
        self._hands.news()

    async def _run_with_journal(self, held: Held) -> None:
        """Let the time of a task pass, and ship what it would have measured meanwhile."""
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
                self._ledger.fault(error)  # an exchange says whether the token is void
                await asyncio.sleep(EVERY_S)
                continue
            if left_s <= 0:
                self._end(held)
                return
