"""Maps metric points between the protocol's names and the journal's. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tunefleet.db.rows import PointRow
from tunefleet.orchestrator.views import LAST_SECOND
from tunefleet.schemas.training_protocol.reports import MetricRow, ReportedPoint

# Field of a reported point → name of the value in the journal.
_NAMES: Final = {
    "train_loss": "loss",
    "eval_loss": "eval_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "gpu_memory_allocated_gb": "gpu_memory_allocated_gb",
    "gpu_memory_reserved_gb": "gpu_memory_reserved_gb",
    "gpu_utilization_percent": "gpu_utilization_percent",
    "samples_per_second": "samples_per_second",
    "tokens_per_second": "tokens_per_second",
    "train_perplexity": "train_perplexity",
    "eval_perplexity": "eval_perplexity",
}
# Above this, exp(loss) overflows a float.
_MAX_LOSS: Final = 700.0


def values_of(point: ReportedPoint) -> dict[str, float | str]:
    """Return a reported point's values under their journal names, without missing ones."""
    found = {ours: getattr(point, theirs) for theirs, ours in _NAMES.items()}
    if found["eval_perplexity"] is None:
        found["eval_perplexity"] = point.perplexity
    return {name: plain(value) for name, value in found.items() if value is not None}


def plain(value: float) -> float | str:
    """Return a JSON-compatible number; NaN and infinities become strings."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def time_of(point: ReportedPoint, now: float) -> float:
    """Return the Unix time of a point; a time without a zone is UTC, a missing one is `now`."""
    if not point.timestamp:
        return now
    try:
        read = datetime.fromisoformat(point.timestamp)
    except ValueError:
        return now
    at = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    return at if 0 <= at < LAST_SECOND else now


def row_of(task_id: str, point: PointRow, values: Mapping[str, Any]) -> MetricRow:
    """Return a stored point under the protocol's names."""
    known = {theirs: values[ours] for theirs, ours in _NAMES.items() if ours in values}
    for perplexity, loss in (("train_perplexity", "train_loss"), ("eval_perplexity", "eval_loss")):
        if perplexity not in known and loss in known:
            known[perplexity] = perplexity_of(known[loss])
    if "eval_perplexity" in known:
        known["perplexity"] = known["eval_perplexity"]
    at = datetime.fromtimestamp(point.at, UTC)
    return MetricRow(job_id=task_id, step=point.step, epoch=point.epoch, timestamp=at, **known)


def perplexity_of(loss: float | str | None) -> float | None:
    """Return the exponential of a loss; None if it is not finite."""
    if not isinstance(loss, int | float) or math.isnan(loss) or loss > _MAX_LOSS:
        return None
    return math.exp(loss)
