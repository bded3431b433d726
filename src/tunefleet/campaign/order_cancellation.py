"""Cancel tasks at the provider that are no longer needed, and record the cost of their time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunefleet.campaign.contract import Outcome, StepContext, StepFailed
from tunefleet.campaign.service.cycle_state import MERGE, SECONDS, TASK
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec


async def cancel(context: StepContext, order: Outcome) -> None:
    """Cancel the task of an order; one that has ended stays unchanged.

    Raises:
        TunefleetError: If the provider cannot be reached.
    """
    ticket = str(order["ticket"])
    took_s = await _took_at_most_s(context, ticket, order.get("at"))
    await context.provider.cancel(ticket)
    for entry in cost_of_time(context.spec.budget, order["key"], took_s):
        await context.repository.spend(context.state, entry.what, entry.amount, entry.key)
    await context.log(f"the task {ticket} at {context.provider.name} is cancelled")


async def cancel_earlier(context: StepContext) -> None:
    """Cancel the earlier task of a cycle that was retried with a new order, if there is one."""
    earlier = (context.state.kept or {}).get("earlier")
    if earlier is not None:
        await cancel(context, earlier)


async def _took_at_most_s(context: StepContext, ticket: str, at: float | None) -> float | None:
    """Return the billed duration of a task: reported by the provider, or since it was ordered; None if unknown."""
    try:
        found = await context.provider.look(ticket)
    except StepFailed:
        found = None  # the provider no longer knows the task
    if found is not None and found.cost_s is not None:
        return found.cost_s
    if at is None:
        return None
    return min(max(0.0, context.clock.wall() - at), context.spec.hours_to_complete * 3600.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the campaign's spending."""

    what: str
    amount: float
    key: str


def cost_of_task(limits: CampaignBudgetSpec, order_key: str) -> Entry:
    """Return the cost of placing an order."""
    return Entry(TASK, limits.cost_per_task, order_key)


def cost_of_time(limits: CampaignBudgetSpec, order_key: str, seconds: float | None) -> Iterator[Entry]:
    """Yield the cost of a task's duration; nothing if it is unknown or free."""
    if seconds is not None and seconds > 0 and limits.cost_per_second > 0:
        yield Entry(SECONDS, limits.cost_per_second * seconds, f"{order_key}/seconds")


def cost_of_merge(limits: CampaignBudgetSpec, key: str, seconds: float) -> Iterator[Entry]:
    """Yield the cost of a merge's duration on RunPod; nothing if it is free."""
    if seconds > 0 and limits.cost_per_merge_second > 0:
        yield Entry(MERGE, limits.cost_per_merge_second * seconds, key)
