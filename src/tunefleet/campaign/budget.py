"""What an order costs, and under which keys that is entered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunefleet.orchestrator.campaigns.cycle_state import MERGE, SECONDS, TASK
from tunefleet.spec.documents.campaign_document import CampaignBudgetSpec


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger.

    Args:
        what: `TASK`, `SECONDS` or `MERGE`.
        amount: In the units of the campaign's costs.
        key: The same cost has the same key, so that it counts once.
    """

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
