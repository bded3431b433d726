"""Views of workers, pending reasons and summaries of running tasks; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tunefleet.schemas.base import Message, ProcessBody
from tunefleet.schemas.worker_link import Capabilities, Load


class MemoryVariant(Message):
    """Estimated peak memory of a training step, as written or for an alternative.

    Args:
        name: `whole` is a full fine-tune; `adapter`, `adapter_8bit` and `adapter_4bit` train a LoRA adapter on a base
            model that is not quantized, or quantized to 8 or 4 bits.
        as_written: Whether this is the variant in the workflow file.
        total_bytes: The sum of the parts.
        weights_bytes: Weights of model and adapter.
        gradients_bytes: Gradients of the trained weights.
        activations_bytes: Activations kept for the backward pass.
        logits_bytes: Logits of one batch and their gradient.
    """

    name: Literal["whole", "adapter", "adapter_8bit", "adapter_4bit"]
    as_written: bool
    total_bytes: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int


class MemoryForecast(Message):
    """Memory estimate of a training task.

    Args:
        variants: The written variant and alternatives; empty if no estimate is possible.
        unknown: Why no estimate is possible, in one sentence.
        compute: Data type of the computation.
        trained: Number of trained weights in the written variant.
        worker_id: The worker whose memory it is compared with; null if none is eligible.
        device: Whether that is GPU or CPU memory.
        available_bytes: Size of that memory.
    """

    variants: tuple[MemoryVariant, ...] = ()
    unknown: str | None = None
    compute: str | None = None
    trained: int | None = None
    weights: int | None = None
    worker_id: str | None = None
    device: Literal["gpu", "cpu"] | None = None
    available_bytes: int | None = None


class WorkerView(Message):
    """A worker."""

    id: str
    status: Literal["online", "unreachable", "lost", "offline"]
    owner: str
    capabilities: Capabilities
    running: tuple[str, ...] = ()
    """Ids of its tasks."""
    registered_at: datetime
    last_seen_at: datetime | None = None
    cordoned: bool = False
    """It gets no new tasks, as set by a user."""
    draining: bool = False
    """It finishes its tasks, then exits."""
    elastic_disabled: bool = False
    """It is on standby: idle while the queue was short, gets no new tasks."""
    load: Load | None = None


class LoadSample(Message):
    """Load of a worker at one time."""

    at: datetime
    load: Load


class WorkerHistory(Message):
    """Load history of a worker, oldest first; `total` is the number of samples before down-sampling."""

    worker_id: str
    total: int
    samples: tuple[LoadSample, ...]


class ElasticView(Message):
    """State of a worker in elastic scaling."""

    worker_id: str
    enabled: bool
    elastic_disabled: bool


class ElasticRequest(ProcessBody):
    """Reactivate a worker, or set it to standby."""

    enabled: bool


class WorkerVerdict(Message):
    """Whether a worker can run a task.

    Args:
        verdict: `fits`, `waits` (busy) or `never` (not eligible).
        reason: Why not, as a clause after the worker's name.
        score: Score of the placement policy, for workers that fit; higher is better.
        runs: Its current tasks, if the task waits for it.
    """

    worker_id: str
    verdict: Literal["fits", "waits", "never"]
    reason: str | None = None
    score: float | None = None
    runs: tuple[str, ...] = ()


class TaskForecast(Message):
    """Where a task would be placed if it were submitted now with an empty queue.

    Args:
        worker_id: The selected worker; null if none is available.
        worker_ids: The selected worker of each part or node that starts now.
        min_workers: Workers that it needs at the same time: nodes, or parts of a federation.
        max_workers: Workers that it uses at most.
        why: Why not, in one sentence.
        after: Names or ids of the upstream tasks that it waits for.
        workers: Eligibility of each registered worker; eligible ones first, best first.
        memory: Memory estimate of a training task; null for other tasks.
    """

    name: str
    kind: str
    worker_id: str | None = None
    worker_ids: tuple[str, ...] = ()
    min_workers: int = 1
    max_workers: int = 1
    why: str | None = None
    after: tuple[str, ...] = ()
    workers: tuple[WorkerVerdict, ...] = ()
    memory: MemoryForecast | None = None


class ConcurrencyForecast(Message):
    """The largest number of tasks of a workflow that run at the same time, and whether the fleet has room for them.

    Args:
        wanted: Tasks and parts that run at the same time; each node of a multi-node run counts.
        available: How many of them the online workers could run at the same time, without other tasks.
        tasks: Names of these tasks.
        summary: The same in one sentence.
    """

    wanted: int
    available: int
    tasks: tuple[str, ...] = ()
    summary: str


class WhyView(Message):
    """Explanation of a task's status.

    Args:
        why: One sentence: the pending reason, or where it runs, or how it ended.
        ahead: Number of queued tasks ahead of it that compete for the same workers.
        waits_for: Id and name of the upstream tasks that have not ended.
        workers: Eligibility of each registered worker.
        attempts: Outcomes of earlier attempts, oldest first, one sentence each.
    """

    task_id: str
    status: str
    why: str | None = None
    ahead: int = 0
    waits_for: tuple[tuple[str, str], ...] = ()
    workers: tuple[WorkerVerdict, ...] = ()
    attempts: tuple[str, ...] = ()


class TaskGlance(Message):
    """Summary of a task's metrics.

    Args:
        step: Step of the newest point of the series `train`.
        latest: The newest value of each name; at most 64 names.
        best: The lowest or highest value of each metric that has a direction, such as a loss or an accuracy.
        loss: The loss curve: step and value, at most 60 points; the last one is the newest.
    """

    step: int | None = None
    latest: dict[str, float | str] = Field(default_factory=dict)
    best: dict[str, float] = Field(default_factory=dict)
    loss: tuple[tuple[int, float], ...] = ()
