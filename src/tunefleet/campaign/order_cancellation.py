"""End tasks at the provider that nobody wants any more, and enter what their time costs."""

from __future__ import annotations

from tunefleet.campaign.budget import cost_of_time
from tunefleet.campaign.contract import Outcome, StepContext, StepFailed


async def cancel(context: StepContext, order: Outcome) -> None:
    """End the task of an order; one that is over stays as it is.

    Args:
        context: With its provider.
        order: What is stored of it: `key`, `ticket`, and `at`, when it was placed, if that is known.

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
    """End the task that ran when somebody let its cycle order anew, if there is one.

    Args:
        context: Of `submit`, or of a cycle that was abandoned there.

    Raises:
        TunefleetError: If the provider cannot be asked now.
    """
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
