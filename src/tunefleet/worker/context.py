"""Dependencies and limits that all attempts of a worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tunefleet.executors.registry import Registry
from tunefleet.observability.spans import Spans
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import Offer
from tunefleet.worker.interfaces import DeliveryFactory, Jobs, ShipperFactory
from tunefleet.worker.machine.rendezvous import RendezvousAddress
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.state import StateFolder
from tunefleet.worker.transfers import InputStore, Transfers


def _no_gpus(_: Offer) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Dependencies and limits.

    Args:
        gpu_monitor: Detects other users of the GPUs; None if contention is ignored.
        spans: Destination of trace spans; None if tracing is off.
    """

    results_dir: Path
    state: StateFolder
    outbox: Outbox
    registry: Registry
    jobs: Jobs
    inputs: InputStore
    shipper: ShipperFactory
    delivery: DeliveryFactory
    env: dict[str, str]
    gpus: Callable[[Offer], tuple[str, ...]] = _no_gpus
    allow_code: bool = False
    suspend_save_s: float = 10.0
    gpu_monitor: GpuContentionMonitor | None = None
    makes_way: bool = False
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    transfers: Transfers = field(default_factory=Transfers)
    spans: Spans | None = None
    worker_id: str = ""
    rendezvous: RendezvousAddress = field(default_factory=RendezvousAddress)

    def folder(self, task_id: str) -> JobFolder:
        """Return the job folder of a task; all its attempts on this machine share the folder and its checkpoints."""
        return JobFolder(self.results_dir / task_id)
