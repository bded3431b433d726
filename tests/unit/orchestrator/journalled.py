"""What journals of a test hold, and how their series is read."""

from __future__ import annotations

from typing import Any

from tests.unit.orchestrator.lab import Lab
from tunefleet.orchestrator.telemetry import series
from tunefleet.schemas.api import MetricsView


def launch(name: str, from_step: int = 0, parent: str | None = None) -> dict[str, Any]:
    return {"type": "launch", "launch": name, "from_step": from_step, "parent": parent}


def metric(step: int, **values: float | str) -> dict[str, Any]:
    return {"type": "metric", "step": step, "values": values or {"loss": 1.0 / step}}


async def read(lab: Lab, task_id: str, **how: Any) -> MetricsView:
    """Read a series as a client gets it."""
    return MetricsView.model_validate_json(await series.read(lab.core, lab.admin, task_id, **how))
