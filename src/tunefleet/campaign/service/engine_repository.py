"""The engine's repository of campaigns: each method is one transaction.

A step is *intended* before it acts and *done* afterwards. A new holder that finds an intent does not know whether the
step acted, and checks that first. A lease names the holder of a campaign; calls of a former holder are refused with
`LeaseLost`, so that two holders never both move a cycle.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from tunefleet.campaign.service import cycle_rewind, cycles, engine_token, model_registry, step_progress
from tunefleet.campaign.service.cycle_state import (
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
from tunefleet.campaign.service.status import ACTIVE, TOPIC, await_person, same_reason, tell, topic
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns, models
from tunefleet.db.campaigns import cycles as cycle_rows
from tunefleet.db.campaigns.campaigns import CampaignRow, LineRow, SpendRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.notifications.messages import spell_until

__all__ = ["LEASE_S", "RENEW_S", "TOPIC", "CampaignRepository", "Level"]

log = logging.getLogger(__name__)
T = TypeVar("T")
Level = Literal["info", "warning", "error"]
# How long a campaign stays with a holder that does not renew its lease.
LEASE_S: Final = 30.0
RENEW_S: Final = 10.0
# Clock steps back by less than this are ordinary corrections (NTP).
CLOCK_S: Final = 60.0
MAX_LINE: Final = 4000
# Of consecutive failures to cancel a task, the first and then every n-th is reported to users.
_REPORT_EVERY: Final = 10
_RUNNING: Final = CycleStatus.RUNNING.value
_HALTED: Final = frozenset({CampaignStatus.PAUSED.value, CampaignStatus.HELD.value})


@dataclass(frozen=True, slots=True)
class _LockedCycle:
    """A locked campaign and its cycle within the transaction of a change."""

    connection: Connection
    row: CampaignRow
    cycle: CycleRow
    now: float


class CampaignRepository:
    """Durable state of a server's campaigns."""

    def __init__(self, core: ServerContext, *, jitter: random.Random | None = None) -> None:
        self._core = core
        self._jitter = jitter or random.Random()

    @property
    def folder(self) -> Path:
        """Folder for temporary files of steps: models may be too large for the system's own temporary folder."""
        return self._core.settings.data_dir / "steps"

    async def begin(self) -> None:
        """Release all leases of an earlier process, and check the clock."""
        # One server at a time leads, and this one does: campaigns of a killed server need not wait for their leases.
        await self._core.write(campaigns.release_all)
        newest = await self._core.read(campaigns.newest_at)
        if newest is not None:
            await self.look_at_clock(newest)

    async def look_at_clock(self, seen: float) -> None:
        """Shorten all waiting times if the clock was set back: it may have been years ahead."""
        now = self._core.clock.wall()
        if now >= seen - CLOCK_S:
            return
        text = f"the clock was set back by {seen - now:,.0f} s: waiting times are shortened accordingly"

        def operation(connection: Connection) -> None:
            campaigns.set_back(connection, now, seen - now)
            for id_ in campaigns.due(connection):
                row = _known(connection, id_)
                campaigns.add(connection, LineRow(row.seq, None, None, "warning", text, now))
                wake(connection, topic(id_))

        await self._core.write(operation)
        log.warning("%s", text)

    async def due(self) -> dict[str, float]:
        """Return the Unix time when each active campaign is due, by id.

        A held campaign is due when its lease ends. Later changes are published under `TOPIC`.
        """
        return await self._core.read(campaigns.due)

    async def take(self, campaign_id: str, holder: str) -> CycleState | None:
        """Claim a campaign for `LEASE_S`, and open its next cycle if it is due.

        Returns:
            The cycle to work on; None if nothing is due, or another holder has the campaign.
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
                # Held instead of raised: retries would fail the same way until a user fixes the file.
                held = await_person(connection, claimed, now, str(error), verb="start")
                campaigns.add(connection, LineRow(held.seq, None, None, "error", f"held: {held.reason}", now))
            campaigns.release(connection, campaign_id, holder=holder)
            return None

        return await self._core.write(operation)

    async def renew(self, state: CycleState) -> bool:
        """Renew the lease of a campaign, even a paused one; False if it was stopped or has another holder."""
        until = self._core.clock.wall() + LEASE_S
        return await self._core.write(partial(campaigns.renew, id_=state.campaign_id, holder=state.holder, until=until))

    async def release(self, state: CycleState) -> None:
        """Release the campaign; does nothing if it has another holder."""

        def operation(connection: Connection) -> None:
            if campaigns.release(connection, state.campaign_id, holder=state.holder):
                wake(connection, TOPIC)

        await self._core.write(operation)

    async def intend(self, state: CycleState, intent: Mapping[str, Any]) -> CycleState:
        """Store a step's intent before it acts; once stored, a different intent is refused.

        Raises:
            LeaseLost: If the campaign has another holder, was paused or stopped, or the cycle has moved on.
            ConflictError: If the step already has a different intent.
        """

        def change(at: _LockedCycle) -> CycleState:
            if at.row.status != ACTIVE:
                raise LeaseLost(f"Campaign {at.row.name} is {at.row.status}.")
            cycles.intend(at.connection, at.row, at.cycle, intent, at.now)
            return cycles.state_of(at.connection, at.row, at.cycle)

        return await self._change(state, change)

    async def keep(self, state: CycleState, kept: Mapping[str, Any]) -> None:
        """Store a step's state of an external job as `CycleState.kept`, until the step is done.

        Raises:
            LeaseLost: As in `done`.
        """
        await self._change(state, lambda at: cycles.keep(at.connection, at.cycle, kept))

    async def done(self, state: CycleState, outcome: Mapping[str, Any]) -> CycleState | None:
        """Store a step's outcome and move to the next one; an outcome is stored even if the campaign was paused.

        Returns:
            The cycle at its next step; None after the last one, or while the campaign is paused.

        Raises:
            LeaseLost: If the campaign has another holder, was stopped, or the cycle has moved on.
        """

        def change(at: _LockedCycle) -> CycleState | None:
            moved = cycles.advance(at.connection, at.row, at.cycle, outcome, at.now)
            # A paused campaign is released here, between two steps.
            if moved is None or at.row.status in _HALTED:
                campaigns.release(at.connection, at.row.id, holder=state.holder)
                return None
            return cycles.state_of(at.connection, at.row, moved)

        return await self._change(state, change)

    async def later(self, state: CycleState, until: float, why: str) -> None:
        """Release a step that has to wait, which is not a failure; each reason is logged once.

        Raises:
            LeaseLost: As in `done`.
        """

        def change(at: _LockedCycle) -> str | None:
            previous = at.cycle.waiting
            cycles.wait(at.connection, at.cycle, until=until, why=why)
            campaigns.release(at.connection, at.row.id, holder=state.holder)
            # The reconciler must learn the new due time.
            wake(at.connection, TOPIC, topic(at.row.id))
            if same_reason(previous, why):
                return None
            line = scrub(f"waiting: {why}; next check in {spell_until(until, at.now)}")[:MAX_LINE]
            _line(at.connection, at.row, state.number, state.step, "info", line, at.now)
            return line

        line = await self._change(state, change)
        if line is not None:
            log.info("[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, line)

    async def failed(self, state: CycleState, error: str, *, fatal: bool, hold: bool = False) -> None:
        """Release a step that failed.

        It is retried after `backoff_s`; after `budget.max_failures` consecutive failures the campaign is held. With
        `fatal` the cycle becomes a dead letter immediately, its position is left to the next cycle unless there is a
        model, and the campaign is held after `budget.max_failures` of them in a row; with `hold`, immediately, because
        only a user can fix the cause.

        Raises:
            LeaseLost: As in `done`.
        """
        draw, text = self._jitter.uniform(-1, 1), scrub(error)[:MAX_LINE]

        def change(at: _LockedCycle) -> str:
            line = cycles.fail(at.connection, at.row, at.cycle, text, at.now, fatal=fatal, hold=hold, draw=draw)
            campaigns.release(at.connection, at.row.id, holder=state.holder)
            _line(at.connection, at.row, state.number, state.step, "error", line[:MAX_LINE], at.now)
            return line

        line = await self._change(state, change)
        log.error("[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, line)

    async def over_budget(self, state: CycleState, error: BudgetError) -> None:
        """Release a step that exceeds the budget, until the budget allows it or a user acts.

        Raises:
            LeaseLost: As in `done`.
        """

        def change(at: _LockedCycle) -> str:
            reason, line = error.message, str(error)
            if error.until is not None:
                cycles.wait(at.connection, at.cycle, until=error.until, why=error.message)
                line = f"{line} Next check in {spell_until(error.until, at.now)}."
            elif at.row.status == ACTIVE:
                held = await_person(at.connection, at.row, at.now, str(error), verb=error.verb, cause="budget")
                reason = held.reason or reason
                line = f"The campaign is held. {reason}"
            campaigns.release(at.connection, at.row.id, holder=state.holder)
            tell(at.connection, at.row, "campaign.budget", at.now, cycle=at.cycle.number, error=reason)
            _line(at.connection, at.row, state.number, state.step, "warning", line, at.now)
            return line

        line = await self._change(state, change)
        log.warning("[%s] cycle %d, %s: %s", state.name, state.number, state.step.value, line)

    async def spend(self, state: CycleState, what: str, amount: float, key: str) -> None:
        """Record a payment; recorded again under the same key, it counts once.

        Args:
            key: Idempotency key of the payment, such as the order's.
        """

        def operation(connection: Connection) -> None:
            # Without a lease check: money was spent even if the campaign has another holder by now.
            row = _known(connection, state.campaign_id)
            now = self._core.clock.wall()
            campaigns.enter_spend(connection, SpendRow(row.seq, state.number, what, key, amount, now))

        await self._core.write(operation)

    async def budget(self, state: CycleState, *, ordered: bool = False) -> Budget:
        """Return a campaign's spending; `Budget.check(state.spec)` raises if a limit is reached.

        Args:
            ordered: Whether the cycle's own order counts. It does not count before it is placed, so that a repeated
                call is not refused because of its own price.
        """
        after = self._core.clock.wall() - DAY_S

        def operation(connection: Connection) -> Budget:
            row, own = _known(connection, state.campaign_id), None if ordered else state.order_key
            return Budget(
                spent=campaigns.total_spend(connection, row.seq, but=own),
                tasks_at=tuple(campaigns.spend_times(connection, row.seq, TASK, after=after, but=own)),
                failures=row.failures,
            )

        return await self._core.read(operation)

    async def log(self, state: CycleState, level: Level, text: str) -> None:
        """Append a line to the log of a campaign; the oldest lines are dropped."""

        def operation(connection: Connection) -> None:
            row = _known(connection, state.campaign_id)
            # Texts of providers may contain signed links or keys.
            text_ = scrub(text)[:MAX_LINE]
            _line(connection, row, state.number, state.step, level, text_, self._core.clock.wall())

        await self._core.write(operation)

    async def report(self, state: CycleState, activity: Activity) -> None:
        """Store a step's progress for display; dropped if the campaign has another holder."""
        now = self._core.clock.wall()
        await self._core.write(partial(step_progress.put, state=state, activity=activity, now=now))

    async def promoted(self, state: CycleState) -> ModelVersion | None:
        """Return the promoted version of the campaign's model."""
        row = await self._core.read(partial(models.promoted, project=state.project, owner=state.owner, name=state.name))
        return None if row is None else model_registry.version_of(row)

    async def published(self, state: CycleState, url: str) -> list[int]:
        """Return the versions of the campaign's model that were published to a URL, oldest first; it holds the last."""
        all_versions = await self._core.read(
            partial(models.of_name, project=state.project, owner=state.owner, name=state.name)
        )
        locations = ((each.version, each.location) for each in map(model_registry.version_of, all_versions))
        return [version for version, where in locations if url in {where.get("url"), where.get("published")}]

    async def register(self, state: CycleState, version: NewVersion) -> ModelVersion:
        """Register a model; registered again by the same attempt of the cycle, the version is updated.

        Promoting a version archives the one that was promoted.

        Raises:
            LeaseLost: As in `done`.
        """

        def change(at: _LockedCycle) -> ModelVersion:
            return model_registry.version_of(model_registry.enter(at.connection, state, version, at.now))

        return await self._change(state, change)

    async def to_cancel(self) -> list[CycleState]:
        """Return the abandoned cycles that may have left a task at the provider or an upload in the store.

        Their `step` is `UPLOAD`, `SUBMIT` or `WAIT`. Cycles whose order may still be in progress follow once the
        holder's lease has ended.
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
                    found.append(cycle_rewind.ended_task(connection, row, cycle))
                except Unreadable as error:
                    unreadable.append((row, cycle, str(error)))
            return found

        found = await self._core.read(operation)
        for row, cycle, why in unreadable:
            await self._retry_later(row.id, cycle.number, why)
        return found

    async def cancelled(self, state: CycleState) -> None:
        """Record that the task of an abandoned cycle was cancelled, or that there is none."""

        def operation(connection: Connection) -> None:
            row = _known(connection, state.campaign_id)
            cycle = cycle_rows.get(connection, row.seq, state.number)
            if cycle is not None:
                cycle_rows.change(connection, cycle, {"to_cancel": 0, "waiting": None})

        await self._core.write(operation)

    async def not_cancelled(self, state: CycleState, error: str) -> None:
        """Record that the task of an abandoned cycle could not be cancelled; it is retried after `backoff_s`.

        Subscribers to the campaign's failures are notified: the task may still be running and cost money.
        """
        await self._retry_later(state.campaign_id, state.number, error)

    async def _retry_later(self, campaign_id: str, number: int, error: str) -> None:
        draw, text = self._jitter.uniform(-1, 1), scrub(error)[:MAX_LINE]

        def operation(connection: Connection) -> None:
            row, now = _known(connection, campaign_id), self._core.clock.wall()
            cycle = cycle_rows.get(connection, row.seq, number)
            if cycle is None or not cycle.to_cancel:
                return
            tries = cycle.tries + 1
            reason = f"its task could not be cancelled, and may still be running at its provider: {text}"[:MAX_LINE]
            again_at = now + cycles.backoff_s(tries, draw)
            cycle_rows.change(connection, cycle, {"tries": tries, "not_before": again_at, "waiting": reason})
            line = f"{reason} Retrying in {spell_until(again_at, now)}."
            _line(connection, row, cycle.number, cycle.step, "error", line, now)
            if cycle.waiting is None or tries % _REPORT_EVERY == 0:
                tell(connection, row, "campaign.uncancelled", now, cycle=cycle.number, error=text)

        await self._core.write(operation)

    async def token(self, campaign_id: str) -> str:
        """Return the token that a campaign authenticates with; raises `NotFoundError` if there is no such campaign."""
        row = await self._core.read(partial(_known, campaign_id=campaign_id))
        return engine_token.token_of(self._core.secret, row.id)

    async def _change(self, state: CycleState, change: Callable[[_LockedCycle], T]) -> T:
        """Change a cycle, if the caller still holds it and has its current state."""

        def operation(connection: Connection) -> T:
            row = campaigns.by_id(connection, state.campaign_id, lock=True)
            if row is None or row.holder != state.holder:
                raise LeaseLost(f"Campaign {state.name} is not held by {state.holder} any more.")
            cycle = cycle_rows.get(connection, row.seq, state.number)
            if cycle is None or not _same(cycle, state):
                # Same holder, but a user has retried or moved the cycle since `state` was read.
                raise LeaseLost(f"Cycle {state.number} of {state.name} has moved on from its step {state.step}.")
            return change(_LockedCycle(connection, row, cycle, self._core.clock.wall()))

        return await self._core.write(operation)


def _same(cycle: CycleRow, state: CycleState) -> bool:
    seen = (_RUNNING, state.step.value, state.tries, state.retried)
    return (cycle.status, cycle.step, cycle.tries, cycle.retried) == seen


def _known(connection: Connection, campaign_id: str) -> CampaignRow:
    row = campaigns.by_id(connection, campaign_id)
    if row is None:
        raise NotFoundError(f"Campaign {campaign_id} not found.")
    return row


def _line(connection: Connection, row: CampaignRow, cycle: int, step: str, level: Level, text: str, now: float) -> None:
    campaigns.add(connection, LineRow(row.seq, cycle, str(step), level, text, now))
    wake(connection, topic(row.id))
