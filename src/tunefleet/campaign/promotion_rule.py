"""Promotion gate and candidate selection, based only on our own evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunefleet.analysis.evaluation.comparison import Difference
from tunefleet.spec.documents.campaign_document import CampaignGateSpec


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better a candidate is than another model.

    Args:
        value: In units of the metric; above 0 is better.
        low: Lower bound of its confidence interval; None if there is none.
    """

    value: float
    low: float | None
    high: float | None
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether a candidate is promoted.

    Args:
        against: Name of the compared model → gain over it.
    """

    passed: bool
    reason: str
    against: Mapping[str, Gain]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dict."""
        return asdict(self)


def decide(
    wanted: CampaignGateSpec, differences: Mapping[str, Difference | None], *, higher_is_better: bool
) -> GateDecision:
    """Decide whether a candidate is promoted: it must be better than every compared model.

    Args:
        differences: Name of a model → the candidate's metric minus the model's, paired row by row.
    """
    gains = {name: _gain(wanted, each, higher_is_better=higher_is_better) for name, each in differences.items()}
    refused = [f"{gain.why} the {name}" for name, gain in gains.items() if not gain.passed]
    if refused:
        return GateDecision(False, f"The candidate is {', and '.join(refused)}.", gains)
    better = ", ".join(f"{gain.value:.4g} than the {name}" for name, gain in gains.items())
    return GateDecision(True, f"The candidate's {wanted.metric} is better by {better}.", gains)


def _gain(wanted: CampaignGateSpec, found: Difference | None, *, higher_is_better: bool) -> Gain:
    if found is None or found.low is None or found.high is None:
        return Gain(0.0 if found is None else found.value, None, None, False, "not comparable, row by row, with")
    sign = 1.0 if higher_is_better else -1.0
    value = sign * found.value
    low, high = sorted((sign * found.low, sign * found.high))
    if not all(map(math.isfinite, (value, low, high))):
        return Gain(value, low, high, False, "not measurable against")
    if low <= 0:
        return Gain(value, low, high, False, "not significantly better than")
    if value < wanted.min_gain:
        return Gain(value, low, high, False, f"better by {value:.4g} only, less than {wanted.min_gain:g}, than")
    return Gain(value, low, high, True, "better than")


def best(losses: Sequence[float | None], scores: Sequence[float | None] | None = None) -> int | None:
    """Return the index of the best candidate; None if none has an eval loss that is finite and not negative."""
    usable = [
        (_cost(scores, index), loss, index)
        for index, loss in enumerate(losses)
        if loss is not None and math.isfinite(loss) and loss >= 0
    ]
    return min(usable)[2] if usable else None


def _cost(scores: Sequence[float | None] | None, index: int) -> float:
    score = None if scores is None else scores[index]
    return math.inf if score is None or not math.isfinite(score) else -score
