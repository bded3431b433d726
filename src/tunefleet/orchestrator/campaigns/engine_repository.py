"""What is durable of campaigns, for the engine that runs them: each method is one transaction.

A step is *intended* before it acts and *done* after. Whoever takes a campaign whose step is intended does not know
whether it acted, asks (`intent` is there), and only then acts. Who holds a campaign is said by a lease; what somebody
says who does not hold it any more is refused with `LeaseLost`, so that two holders never both move a cycle.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns, models, spend
from tunefleet.db.campaigns import cycles as cycle_rows
from tunefleet.db.campaigns.campaigns import CampaignRow, LineRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.db.campaigns.spend import SpendRow
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus
from tunefleet.observability.scrub import scrub
from tunefleet.orchestrator.campaigns import backwards, cycles, engine_token, model_registry, step_progress
from tunefleet.orchestrator.campaigns.cycle_state import (
    DAY_S,
    TASK,
    Budget,
    BudgetError,
    CycleState,
    LeaseLost,
    ModelVersion,
    NewVersion,
    Unreadable,
)
from tunefleet.orchestrator.campaigns.status import ACTIVE, TOPIC, await_person, same_reason, tell, topic
from tunefleet.orchestrator.campaigns.step_progress import Activity
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.notifications.messages import spell_until

__all__ = ["LEASE_S", "RENEW_S", "TOPIC", "Book", "Level"]

log = logging.getLogger(__name__)
T = TypeVar("T")
Level = Literal["info", "warning", "error"]
# How long a campaign stays with a holder that says nothing.
LEASE_S: Final = 30.0
RENEW_S: Final = 10.0
# A clock that goes back by less is only corrected.
CLOCK_S: Final = 60.0
MAX_LINE: Final = 4000
# Of failures in a row to cancel a task the first is told to people, and then one in so many.
_TOLD_EVERY: Final = 10
_RUNNING: Final = CycleStatus.RUNNING.value
_HALTED: Final = frozenset({CampaignStatus.PAUSED.value, CampaignStatus.HELD.value})


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a holder changes something: the locked campaign and its cycle, in one transaction."""

    connection: Connection
    row: CampaignRow
    cycle: CycleRow
    now: float


class Book:
    """The campaigns of a server."""

    def __init__(self, core: Core, *, jitter: random.Random | None = None) -> None:
        self._core = core
        self._jitter = jitter or random.Random()

    @property
    def folder(self) -> Path:
        """Where steps keep files while they run: models, which may be too large for the system's own folder."""
        return self._core.settings.data_dir / "steps"

    async def begin(self) -> None:
        """Let go of what an earlier process held: one server at a time has the store, and this one is it.

        Without it a campaign whose server was killed would wait for the rest of a lease.
        """
        await self._core.write(campaigns.release_all)
        newest = await self._core.read(campaigns.newest_at)
        if newest is not None:
            await self.look_at_clock(newest)

    async def look_at_clock(self, seen: float) -> None:
        """Let what waits do so for less long if the clock was set back: it may have been years ahead."""
        now = self._core.clock.wall()
        if now >= seen - CLOCK_S:
            return
        text = f"the clock was set back by {seen - now:,.0f} s: what waits does so for that much less"

        def operation(connection: Connection) -> None:
            campaigns.set_back(connection, now, seen - now)
            for id_ in campaigns.due(connection):
                row = _known(connection, id_)
                campaigns.add(connection, LineRow(row.seq, None, None, "warning", text, now))
                wake(connection, topic(id_))

        await self._core.write(operation)
        log.warning("%s", text)

    async def due(self) -> dict[str, float]:
        """Return from when on each active campaign may want something, in Unix time, by its id.

        While somebody holds it that is when their lease ends. What is changed meanwhile is told under `TOPIC`.
        """
        return await self._core.read(campaigns.due)

    async def take(self, campaign_id: str, holder: str) -> CycleState | None:
        """Take a campaign for `LEASE_S`, and open its next cycle if that is due.

        Returns:
            The cycle to work on; null if nothing is to be done now, or somebody else works on it.
        """
        now = self._core.clock.wall()

        def operation(connection: Connection) -> CycleState | None:
            row = campaigns.by_id(connection, campaign_id, lock=True)
            claimed = row and campaigns.claim(connection, row, holder=holder, now=now, until=now + LEASE_S)
            if not claimed:
                return None
            cycle = cycles.next_to_do(connection, claimed, now)
            try:
                if cycle is not None:
                    return cycles.state_of(connection, claimed, cycle)
            except Unreadable as error:
                held = await_person(connection, claimed, now, str(error), verb="start")
                campaigns.add(connection, LineRow(held.seq, None, None, "error", f"held: {held.reason}", now))
            campaigns.release(connection, campaign_id, holder=holder)
            return None

        return await self._core.write(operation)

    async def renew(self, state: CycleState) -> bool:
        """Keep a campaign for longer, even a paused one; false if it was stopped, or is somebody else's by now."""
        until = self._core.clock.wall() + LEASE_S
        return await self._core.write(partial(campaigns.renew, id_=state.campaign_id, holder=state.holder, until=until))

    async def release(self, state: CycleState) -> None:
        """Let somebody else have the campaign, now; nothing happens if it is somebody else's."""

        def operation(connection: Connection) -> None:
            if campaigns.release(connection, state.campaign_id, holder=state.holder):
                wake(connection, TOPIC)

        await self._core.write(operation)

    async def intend(self, state: CycleState, intent: Mapping[str, Any]) -> CycleState:
        """Store what a step is about to do, before it does it; once it is stored, another intent is refused.

        Raises:
            LeaseLost: If somebody else has the campaign, it was paused or stopped, or the cycle has moved on.
            ConflictError: If the step has another intent already.
        """

        def verb(at: _Place) -> CycleState:
            if at.row.status != ACTIVE:
                raise LeaseLost(f"The campaign {at.row.name} is {at.row.status}.")
            cycles.intend(at.connection, at.row, at.cycle, intent, at.now)
            return cycles.state_of(at.connection, at.row, at.cycle)

        return await self._change(state, verb)

    async def keep(self, state: CycleState, kept: Mapping[str, Any]) -> None:
        """Store what a step has to know of something that runs elsewhere: `CycleState.kept`, until the step is done.

        Raises:
            LeaseLost: As in `done`.
        """
        await self._change(state, lambda at: cycles.keep(at.connection, at.cycle, kept))

    async def done(self, state: CycleState, outcome: Mapping[str, Any]) -> CycleState | None:
        """Store what a step has done, and go to the next one. A pause does not undo what is done: it is stored.

        Returns:
            The cycle at its next step; null after the last one, or while the campaign is paused.

        Raises:
            LeaseLost: If somebody else has the campaign, it was stopped, or the cycle has moved on.
        """

        def verb(at: _Place) -> CycleState | None:
            moved = cycles.advance(at.connection, at.row, at.cycle, outcome, at.now)
            if moved is None or at.row.status in _HALTED:
                campaigns.release(at.connection, at.row.id, holder=state.holder)
                return None
            return cycles.state_of(at.connection, at.row, moved)

        return await self._change(state, verb)

    async def later(self, state: CycleState, until: float, why: str) -> None:
        """Let go of a step that waits for something, which is no failure; the log says so once for each reason.

        Raises:
            LeaseLost: As in `done`.
        """

        def verb(at: _Place) -> str | None:
            told = at.cycle.waiting
            cycles.wait(at.connection, at.cycle, until=until, why=why)
            campaigns.release(at.connection, at.row.id, holder=state.holder)
            wake(at.connection, TOPIC, topic(at.row.id))
            if same_reason(told, why):
                return None
            line = scrub(f"waiting: {why}; next check in {spell_until(until, at.now)}")[:MAX_LINE]
            _line(at.connection, at.row, state.number, state.step, "info", line, at.now)
            return line

        line = await self._change(state, verb)
        if line is not None:
            log.info("[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, line)

    async def failed(self, state: CycleState, error: str, *, fatal: bool, hold: bool = False) -> None:
        """Let go of a step that failed.

        It is tried again after `backoff_s`; after `budget.max_failures` tries in a row the campaign is held. With
        `fatal` the cycle is a dead letter at once, its position is left to the next cycle unless there is a model, and
        the campaign is held after so many of them in a row; with `hold` at once, since only a person can mend it.

        Raises:
            LeaseLost: As in `done`.
        """
        draw, text = self._jitter.uniform(-1, 1), scrub(error)[:MAX_LINE]

        def verb(at: _Place) -> str:
            line = cycles.fail(at.connection, at.row, at.cycle, text, at.now, fatal=fatal, hold=hold, draw=draw)
            campaigns.release(at.connection, at.row.id, holder=state.holder)
            _line(at.connection, at.row, state.number, state.step, "error", line[:MAX_LINE], at.now)
            return line

        line = await self._change(state, verb)
        log.error("[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, line)

    async def over_budget(self, state: CycleState, error: BudgetError) -> None:
        """Let go of a step that the budget has no room for: until there is room, or until a person says so.

        Raises:
            LeaseLost: As in `done`.
        """

        def verb(at: _Place) -> str:
            said, line = error.message, str(error)
            if error.until is not None:
                cycles.wait(at.connection, at.cycle, until=error.until, why=error.message)
                line = f"{line} Next check in {spell_until(error.until, at.now)}."
            elif at.row.status == ACTIVE:
                held = await_person(at.connection, at.row, at.now, str(error), verb=error.verb, cause="budget")
                said = held.reason or said
                line = f"The campaign is held. {said}"
            campaigns.release(at.connection, at.row.id, holder=state.holder)
            tell(at.connection, at.row, "campaign.budget", at.now, cycle=at.cycle.number, error=said)
            _line(at.connection, at.row, state.number, state.step, "warning", line, at.now)
            return line

        line = await self._change(state, verb)
        log.warning("[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, line)

    async def spend(self, state: CycleState, what: str, amount: float, key: str) -> None:
        """Enter something that was paid for; entered again under the same key, it counts once.

        Args:
            key: Of what was paid for, such as the order's.
        """

        def operation(connection: Connection) -> None:
            # Whoever holds the campaign by now: what was paid for was paid for.
            row = _known(connection, state.campaign_id)
            now = self._core.clock.wall()
            spend.enter(connection, SpendRow(row.seq, state.number, what, key, amount, now))

        await self._core.write(operation)

    async def budget(self, state: CycleState, *, ordered: bool = False) -> Budget:
        """Return where a campaign stands with what it may spend; `Budget.check(state.spec)` refuses what is too much.

        Args:
            ordered: Whether the cycle's own order counts. Before that is placed it does not: a call that is repeated
                is not refused for its own price.
        """
        after = self._core.clock.wall() - DAY_S

        def operation(connection: Connection) -> Budget:
            row, own = _known(connection, state.campaign_id), None if ordered else state.order_key
            return Budget(
                spent=spend.total(connection, row.seq, but=own),
                tasks_at=tuple(spend.times(connection, row.seq, TASK, after=after, but=own)),
                failures=row.failures,
            )

        return await self._core.read(operation)

    async def log(self, state: CycleState, level: Level, text: str) -> None:
        """Add a line to the log of a campaign; the oldest ones give way."""

        def operation(connection: Connection) -> None:
            row = _known(connection, state.campaign_id)
            text_ = scrub(text)[:MAX_LINE]
            _line(connection, row, state.number, state.step, level, text_, self._core.clock.wall())

        await self._core.write(operation)

    async def report(self, state: CycleState, found: Activity) -> None:
        """Store how far a step is, for whoever watches; dropped if somebody else has the campaign by now."""
        now = self._core.clock.wall()
        await self._core.write(partial(step_progress.put, state=state, activity=found, now=now))

    async def promoted(self, state: CycleState) -> ModelVersion | None:
        """Return the promoted version of the campaign's model."""
        row = await self._core.read(partial(models.promoted, project=state.project, owner=state.owner, name=state.name))
        return None if row is None else model_registry.version_of(row)

    async def published(self, state: CycleState, url: str) -> list[int]:
        """Return which versions of the campaign's model were put to a place, oldest first; the last one lies there."""
        everyone = await self._core.read(
            partial(models.of_name, project=state.project, owner=state.owner, name=state.name)
        )
        places = ((each.version, each.location) for each in map(model_registry.version_of, everyone))
        return [version for version, where in places if url in {where.get("url"), where.get("published")}]

    async def register(self, state: CycleState, version: NewVersion) -> ModelVersion:
        """Enter a model; entered again by the same try of the cycle, it is the same version, changed.

        A version that becomes promoted archives the one that was.

        Raises:
            LeaseLost: As in `done`.
        """

        def verb(at: _Place) -> ModelVersion:
            return model_registry.version_of(model_registry.enter(at.connection, state, version, at.now))

        return await self._change(state, verb)

    async def to_cancel(self) -> list[CycleState]:
        """Return the abandoned cycles of which something may be left at the provider or in the store.

        Their `step` is `UPLOAD`, `SUBMIT` or `WAIT`.

        Not those whose order somebody may still be placing: they come once that one's lease has ended.
        """
        now = self._core.clock.wall()

        unreadable: list[tuple[CampaignRow, CycleRow, str]] = []

        def operation(connection: Connection) -> list[CycleState]:
            unreadable.clear()
            found = []
            for cycle in cycle_rows.to_cancel(connection, now):
                row = campaigns.by_seq(connection, cycle.campaign_seq)
                assert row is not None, "campaigns are never removed"
                try:
                    found.append(backwards.ended_task(connection, row, cycle))
                except Unreadable as error:
                    unreadable.append((row, cycle, str(error)))
            return found

        found = await self._core.read(operation)
        for row, cycle, why in unreadable:
            await self._put_off(row.id, cycle.number, why)
        return found

    async def cancelled(self, state: CycleState) -> None:
        """Store that the task of an abandoned cycle is cancelled, or that there is none."""

        def operation(connection: Connection) -> None:
            row = _known(connection, state.campaign_id)
            cycle = cycle_rows.get(connection, row.seq, state.number)
            if cycle is not None:
                cycle_rows.change(connection, cycle, {"to_cancel": 0, "waiting": None})

        await self._core.write(operation)

    async def not_cancelled(self, state: CycleState, error: str) -> None:
        """Store that the task of an abandoned cycle could not be cancelled yet: that is tried again after `backoff_s`.

        Whoever is told of the campaign's failures is told of that, too: the task may go on, and cost something.
        """
        await self._put_off(state.campaign_id, state.number, error)

    async def _put_off(self, campaign_id: str, number: int, error: str) -> None:
        draw, text = self._jitter.uniform(-1, 1), scrub(error)[:MAX_LINE]

        def operation(connection: Connection) -> None:
            row, now = _known(connection, campaign_id), self._core.clock.wall()
            cycle = cycle_rows.get(connection, row.seq, number)
            if cycle is None or not cycle.to_cancel:
                return
            tries = cycle.tries + 1
            said = f"its task could not be cancelled, and may go on at its provider: {text}"[:MAX_LINE]
            again_at = now + cycles.backoff_s(tries, draw)
            cycle_rows.change(connection, cycle, {"tries": tries, "not_before": again_at, "waiting": said})
            line = f"{said} Tried again in {spell_until(again_at, now)}."
            _line(connection, row, cycle.number, cycle.step, "error", line, now)
            if cycle.waiting is None or tries % _TOLD_EVERY == 0:
                tell(connection, row, "campaign.uncancelled", now, cycle=cycle.number, error=text)

        await self._core.write(operation)

    async def token(self, campaign_id: str) -> str:
        """Return the token that a campaign speaks with to its server; raises `NotFoundError` if there is none."""
        row = await self._core.read(partial(_known, campaign_id=campaign_id))
        return engine_token.token_of(self._core.secret, row.id)

    async def _change(self, state: CycleState, verb: Callable[[_Place], T]) -> T:
        """Change a cycle for whoever holds it and knows where it stands."""

        def operation(connection: Connection) -> T:
            row = campaigns.by_id(connection, state.campaign_id, lock=True)
            if row is None or row.holder != state.holder:
                raise LeaseLost(f"The campaign {state.name} is not held by {state.holder} any more.")
            cycle = cycle_rows.get(connection, row.seq, state.number)
            if cycle is None or not _same(cycle, state):
                raise LeaseLost(f"Cycle {state.number} of {state.name} has moved on from its step {state.step}.")
            return verb(_Place(connection, row, cycle, self._core.clock.wall()))

        return await self._core.write(operation)


def _same(cycle: CycleRow, state: CycleState) -> bool:
    seen = (_RUNNING, state.step.value, state.tries, state.retried)
    return (cycle.status, cycle.step, cycle.tries, cycle.retried) == seen


def _known(connection: Connection, campaign_id: str) -> CampaignRow:
    row = campaigns.by_id(connection, campaign_id)
    if row is None:
        raise NotFoundError(f"There is no campaign {campaign_id}.")
    return row


def _line(connection: Connection, row: CampaignRow, cycle: int, step: str, level: Level, text: str, now: float) -> None:
    campaigns.add(connection, LineRow(row.seq, cycle, str(step), level, text, now))
    wake(connection, topic(row.id))
