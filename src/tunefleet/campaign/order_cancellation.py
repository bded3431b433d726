"""End tasks at the provider that nobody wants any more, and enter what their time costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunefleet.campaign.contract import Outcome, StepContext, StepFailed
from tunefleet.orchestrator.campaigns.cycle_state import MERGE, SECONDS, TASK
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec


async def cancel(context: StepContext, order: Outcome) -> None:
    """End the task of an order; one that is over stays as it is.

    Raises:
        TunefleetError: If the provider cannot be asked now.
    """
    ticket = str(order["ticket"])
    took_s = await _took_at_most_s(context, ticket, order.get("at"))
    await context.provider.cancel(ticket)
    for entry in cost_of_time(context.spec.budget, order["key"], took_s):
        await context.book.spend(context.state, entry.what, entry.amount, entry.key)
    await context.log(f"the task {ticket} at {context.provider.name} is cancelled")


async def cancel_earlier(context: StepContext) -> None:
    """End the task that ran when somebody let its cycle order anew, if there is one."""
    earlier = (context.state.kept or {}).get("earlier")
    if earlier is not None:
        await cancel(context, earlier)


async def _took_at_most_s(context: StepContext, ticket: str, at: float | None) -> float | None:
    """Return for how long a task is paid: as its provider says, or since it was ordered; null if nobody knows."""
    try:
        found = await context.provider.look(ticket)
    except StepFailed:
        found = None  # the provider does not know it any more
    if found is not None and found.cost_s is not None:
        return found.cost_s
    if at is None:
        return None
    return min(max(0.0, context.clock.wall() - at), context.spec.hours_to_complete * 3600.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger."""

    what: str
    amount: float
    key: str


def cost_of_task(limits: CampaignBudgetSpec, order_key: str) -> Entry:
    """Return what placing an order costs."""
    return Entry(TASK, limits.cost_per_task, order_key)


def cost_of_time(limits: CampaignBudgetSpec, order_key: str, seconds: float | None) -> Iterator[Entry]:
    """Yield what the time of a task costs; nothing where that is not known, or costs nothing."""
    if seconds is not None and seconds > 0 and limits.cost_per_second > 0:
        yield Entry(SECONDS, limits.cost_per_second * seconds, f"{order_key}/seconds")


def cost_of_merge(limits: CampaignBudgetSpec, key: str, seconds: float) -> Iterator[Entry]:
    """Yield what the time of a merge on RunPod costs; nothing where that costs nothing."""
    if seconds > 0 and limits.cost_per_merge_second > 0:
        yield Entry(MERGE, limits.cost_per_merge_second * seconds, key)
