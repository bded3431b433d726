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

Fetch = Callable[[str, Stop], Path]
"""From an address, and what ends it early, to the local file that it was fetched to."""
Claim = Callable[[Mapping[str, Any]], tuple[str, ...]]
"""From a spec to the UUIDs of the GPUs that the job gets."""


@dataclass(frozen=True, slots=True)
class Site:
    """Collaborators and limits, shared by all jobs.

    Args:
        settings: The agent's.
        jobs: Starts and finds the processes.
        registry: The kinds that can run.
        fetch: Fetches what a dataset's address names.
        gpus: Chooses a job's GPUs.
        backend: Makes the client of a job from URL and token.
        env: Variables of every job, such as its share of the cores.
        load: Utilisation of a GPU in percent by UUID, as it was seen last.
        sentry: Knows who else uses the GPUs; None if nobody is heeded.
        spans: Where the spans of traces go; None if nowhere.
        name: The agent's, for what it tells.
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
