"""The page of all families that a server's `GET /metrics` has, from the registry itself."""

from __future__ import annotations

from typing import Any

from tunefleet.orchestrator.counters import Bounded, Meters
from tunefleet.orchestrator.observability.gauges import Gauges

_HEAD = """# Metrics

<!-- Written by `make docs`. -->

The metric families that `GET /metrics` exposes, besides those of the process and of Python (`process_*`, `python_*`).
Labels never contain task ids or paths. A label with user-defined values has at most 64 values; all others are counted
under `other`. [Monitoring](../how-to/monitoring.md) explains how to use these metrics.

| Family | Type | Labels | Meaning |
|---|---|---|---|
"""


def families() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return name, type, labels and meaning of each family, by name."""
    meters = Meters(process=False)
    own: list[Any] = list(meters.registry._collector_to_names)
    counted = [(each._name, each._type, tuple(each._labelnames), each._documentation) for each in own]
    looked_up: list[Any] = list(Gauges(Bounded()).collect())
    gauges = [(each.name, each.type, tuple(each._labelnames), each.documentation) for each in looked_up]
    return sorted((_whole(name, kind), kind, labels, text) for name, kind, labels, text in counted + gauges)


def _whole(name: str, kind: str) -> str:
    return {"counter": f"{name}_total", "info": f"{name}_info"}.get(kind, name)


def page() -> str:
    """Return the text of `docs/reference/metrics.md`."""
    rows = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {text} |"
        for name, kind, labels, text in families()
    ]
    return _HEAD + "\n".join(rows) + "\n"
