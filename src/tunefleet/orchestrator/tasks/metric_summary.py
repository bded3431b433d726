"""Summary of a task's metrics for lists: latest and best values, and a thinned loss curve.

It is updated with each batch of points, so that a list of a thousand tasks reads a thousand short texts and no points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from tunefleet.schemas.fleet import TaskGlance
from tunefleet.spec.options.sweep import lower_is_better

CURVE_POINTS: Final = 60
# A group of lm-eval tasks may log thousands of values.
_MAX_NAMES: Final = 64
_MAX_CHARACTERS: Final = 32
# The evaluations before and after training are points of the same curve as those during it.
SAME: Final = {"held_out_loss": "eval_loss", "held_out_exact_match": "eval_exact_match"}


@dataclass(slots=True)
class MetricSummary:
    """Latest and best values by name, and the loss curve.

    Args:
        step: Highest step.
        loss: Step and value; the last one is always the newest.
        stride: One of this many logged losses stays in the curve.
        logged: Number of losses so far.
    """

    step: int | None = None
    latest: dict[str, float | str] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    loss: list[tuple[int, float]] = field(default_factory=list)
    stride: int = 1
    logged: int = 0

    @classmethod
    def load(cls, text: str | None) -> MetricSummary:
        """Return a stored summary, or an empty one."""
        return cls(**orjson.loads(text)) if text else cls()

    def dump(self) -> str:
        """Return it as it is stored."""
        return orjson.dumps(asdict(self)).decode()

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a point."""
        self.step = step if self.step is None else max(self.step, step)
        for logged_name, value in values.items():
            name = SAME.get(logged_name, logged_name)
            if name not in self.latest and len(self.latest) >= _MAX_NAMES:
                continue
            if isinstance(value, str):
                self.latest[name] = value[:_MAX_CHARACTERS]
            elif isinstance(value, int | float) and math.isfinite(value):
                self.latest[name] = latest = _short(value, 7)
                self._compare(name, latest)
                if name == "loss":
                    self._draw(step, _short(value, 4))

    def _compare(self, name: str, value: float) -> None:
        lower = lower_is_better(name)
        if lower is not None:
            self.best[name] = (min if lower else max)(self.best.get(name, value), value)

    def _draw(self, step: int, value: float) -> None:
        if self.loss and (self.logged - 1) % self.stride:
            # It was there only as the newest.
            self.loss.pop()
        self.loss.append((step, value))
        self.logged += 1
        if len(self.loss) > CURVE_POINTS:
            self.loss, self.stride = self.loss[::2], self.stride * 2


def _short(value: float, digits: int) -> float:
    # Lists are sorted by numbers in these texts: shorter ones are parsed twice as fast.
    return float(f"{value:.{digits}g}")


def glance_of(text: str) -> TaskGlance:
    """Return a stored summary as part of a task."""
    summary = MetricSummary.load(text)
    return TaskGlance(step=summary.step, latest=summary.latest, best=summary.best, loss=tuple(summary.loss))
