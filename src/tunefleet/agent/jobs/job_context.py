"""What every job of the agent works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefleet.client.backend import JobClient
from tunefleet.client.external.interrupt import Stop
from tunefleet.executors.registry import Registry
from tunefleet.observability.spans import Spans
from tunefleet.runtime import Supervisor
from tunefleet.runtime.monitor.preemption import GpuSentry
from tunefleet.settings import AgentSettings

# From an address, and what ends it early, to the local file that it was fetched to.
Fetch = Callable[[str, Stop], Path]
# From a spec to the UUIDs of the GPUs that the job gets.
Claim = Callable[[Mapping[str, Any]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Site:
    """Collaborators and limits, shared by all jobs.

    Args:
        env: Variables of every job, such as its share of the cores.
        sentry: Knows who else uses the GPUs; None if nobody is heeded.
        spans: Where the spans of traces go; None if nowhere.
    """

    settings: AgentSettings
    jobs: Supervisor
    registry: Registry
    fetch: Fetch
    gpus: Claim
    backend: Callable[[str, str], JobClient]
    env: dict[str, str] = field(default_factory=dict)
    load: Callable[[str], float | None] = lambda _: None
    sentry: GpuSentry | None = None
    spans: Spans | None = None
    name: str = ""
