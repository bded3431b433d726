"""Dependencies and limits that all jobs of the agent share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefleet.client.backend import JobClient
from tunefleet.client.external.interrupt import CancelToken
from tunefleet.executors.registry import Registry
from tunefleet.observability.spans import Spans
from tunefleet.runtime import Supervisor
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor
from tunefleet.settings import AgentSettings

# (URL, stop signal) -> path of the downloaded file.
Fetch = Callable[[str, CancelToken], Path]
# Spec -> UUIDs of the GPUs for the job.
Claim = Callable[[Mapping[str, Any]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Dependencies and limits.

    Args:
        env: Environment variables of every job, such as its number of threads.
        gpu_monitor: Detects other users of the GPUs; None if contention is ignored.
        spans: Destination of trace spans; None if tracing is off.
    """

    settings: AgentSettings
    jobs: Supervisor
    registry: Registry
    fetch: Fetch
    gpus: Claim
    backend: Callable[[str, str], JobClient]
    env: dict[str, str] = field(default_factory=dict)
    load: Callable[[str], float | None] = lambda _: None
    gpu_monitor: GpuContentionMonitor | None = None
    spans: Spans | None = None
    name: str = ""
