"""How long a campaign sleeps between two runs: drawn once, by the key of the cycle alone."""

from __future__ import annotations

import random
from typing import Final

from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec, RunIntervalsSpec

_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0


def interval_of(spec: CampaignSpec, settings: CampaignSettings) -> RunIntervalsSpec:
    """Return the interval of a campaign: its own, else that of the environment."""
    return spec.run_intervals or RunIntervalsSpec(
        min_days=settings.min_days,
        max_days=settings.max_days,
        min_hours=settings.min_hours,
        max_hours=settings.max_hours,
    )


def draw_s(interval: RunIntervalsSpec, key: str) -> float:
    """Return how many seconds to sleep: a draw of days and a draw of hours, added.

    Args:
        interval: Least and most of both.
        key: Of the cycle; drawn again for the same one, it is the same.
    """
    drawn = random.Random(f"interval:{key}")
    days = drawn.uniform(interval.min_days, interval.max_days)
    hours = drawn.uniform(interval.min_hours, interval.max_hours)
    return days * _DAY_S + hours * _HOUR_S
