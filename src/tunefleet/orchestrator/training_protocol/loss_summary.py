"""What a series of points amounts to: the newest values, the best evaluation, the trend of the loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from tunefleet.db.rows import PointRow

# How many losses the trend looks at.
TREND_POINTS: Final = 10
_TREND_SHARE: Final = 0.05
Trend = Literal["improving", "stable", "degrading"]


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation."""

    eval_loss: float
    step: int
    epoch: float | None
    since: int


def number(value: Any) -> float | None:
    """Return a finite number, or null."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def newest_values(points: Sequence[PointRow]) -> dict[str, float]:
    """Return the newest finite value of each name; points come oldest first."""
    found: dict[str, float] = {}
    for point in points:
        for name, raw in orjson.loads(point.values_json).items():
            value = number(raw)
            if value is not None:
                found[name] = value
    return found


def losses(points: Sequence[PointRow]) -> list[float]:
    """Return the losses of points, oldest first."""
    raw = (orjson.loads(point.values_json).get("loss") for point in points)
    return [value for each in raw if (value := number(each)) is not None]


def trend(last: Sequence[float]) -> Trend | None:
    """Compare the later half of the last losses with the earlier one; 5 % are a difference."""
    half = len(last) // 2
    if half == 0:
        return None
    early = sum(last[:half]) / half
    late = sum(last[-half:]) / half
    if early == 0:
        return "stable" if late == 0 else "degrading"
    change = (late - early) / abs(early)
    if change < -_TREND_SHARE:
        return "improving"
    return "degrading" if change > _TREND_SHARE else "stable"


def best(points: Sequence[PointRow]) -> Best | None:
    """Return the best of the points that have an `eval_loss`; null if none has one."""
    found: Best | None = None
    for point in points:
        value = number(orjson.loads(point.values_json).get("eval_loss"))
        if value is None:
            continue
        if found is None or value < found.eval_loss:
            found = Best(value, point.step, point.epoch, 0)
        else:
            found = Best(found.eval_loss, found.step, found.epoch, found.since + 1)
    return found
