"""An engine on the lab's store, whose steps do nothing but be counted, except those that order and wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.contract import Candidate, Later, Order, Outcome, Progress, StepContext
from tunefleet.campaign.engine import Engine
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.campaign.steps.sleep import SleepStep
from tunefleet.campaign.steps.submit import SubmitStep
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.client import AsyncClient
from tunefleet.lifecycle.cycle import STEPS, StepName
from tunefleet.orchestrator.context import Clock
from tunefleet.settings import CampaignSettings


class Crash(BaseException):
    """The process is gone: nobody catches this."""


@dataclass
class Shop:
    """A provider that bills each order that is placed; it outlives every engine."""

    orders: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    find_error: Exception | None = None

    def provider(self, crash: Callable[[str], None]) -> Played:
        return Played(self, crash)


class Played:
    name, paid, fetches_from_store = "played", True, False

    def __init__(self, shop: Shop, crash: Callable[[str], None]) -> None:
        self._shop, self._crash = shop, crash

    async def submit(self, order: Order) -> str:
        self._crash("before billing")
        self._shop.orders.append(order.key)
        self._crash("after billing")
        return f"ticket-{order.key}"

    async def find(self, order: Order) -> str | None:
        if self._shop.find_error is not None:
            raise self._shop.find_error
        return f"ticket-{order.key}" if order.key in self._shop.orders else None

    async def look(self, ticket: str) -> Progress:
        state = self._shop.states.get(ticket, "succeeded")
        made = (Candidate(ticket, "model", "one"),) if state == "succeeded" else ()
        return Progress(state, state, made, cost_s=2.0)  # type: ignore[arg-type]

    async def cancel(self, ticket: str) -> None:
        self._shop.cancelled.append(ticket)

    async def close(self) -> None:
        return


class Counted:
    """A step whose effect is the same however often it acts."""

    def __init__(self, name: StepName, acts: list[tuple[int, StepName]]) -> None:
        self.name = name
        self._acts = acts

    async def plan(self, context: StepContext) -> Outcome:
        return {}

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        return None

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        self._acts.append((context.state.number, self.name))
        if self.name is StepName.DATA:
            position = context.state.position
            chunk = {"task_id": "t", "artifact_id": "a", "digest": f"d{position}", "rows": 1}
            return {"chunk": chunk, "position": position}
        return {}


class Crashing(CampaignRepository):
    """A book that dies before or after its N-th change; `points` counts them."""

    def __init__(self, lab: Lab, crash: Callable[[str], None]) -> None:
        super().__init__(lab.core)
        self._crash = crash

    async def intend(self, *given: Any) -> Any:
        return await self._around("intend", super().intend(*given))

    async def done(self, *given: Any) -> Any:
        return await self._around("done", super().done(*given))

    async def spend(self, *given: Any) -> Any:
        return await self._around("spend", super().spend(*given))

    async def _around(self, what: str, change: Any) -> Any:
        try:
            self._crash(f"before {what}")
        except Crash:
            change.close()
            raise
        made = await change
        self._crash(f"after {what}")
        return made


class Points:
    """Counts places at which a process may die, and kills it at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.seen: list[str] = []
        self._at = at

    def __call__(self, where: str) -> None:
        self.seen.append(where)
        if self._at is not None and len(self.seen) == self._at + 1:
            raise Crash(where)


def engine(
    lab: Lab, shop: Shop, points: Points, acts: list[tuple[int, StepName]] | None = None, *, real: Iterable[Any] = ()
) -> Engine:
    clock = Clock(lambda: lab.clock.wall, lambda: lab.clock.monotonic)
    counted: dict[StepName, Any] = {name: Counted(name, acts if acts is not None else []) for name in STEPS}
    steps = {**counted, **{step.name: step for step in (SubmitStep(), WaitStep(), SleepStep(), *real)}}
    return Engine(
        Crashing(lab, points),
        CampaignSettings(),
        lambda token: AsyncClient("http://127.0.0.1:9", token),
        clock=clock,
        find_provider=lambda _: lambda _settings, _client: shop.provider(points),
        steps=steps,
        renew_s=0.05,
    )
