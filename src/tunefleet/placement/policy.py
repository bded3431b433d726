"""Worker selection policies: `best_fit`, `first_fit` and `min_satisfying`.

All of them prefer first a GPU if it is optional, then workers that have the task's model and datasets cached.
`best_fit` weighs throughput against cost:

    score = λ·T̂ − (1 − λ)·Ĉ + jitter        T = 100·GPUs + their memory + memory/2 + cores/2   (GiB; what is free)

T̂ and Ĉ are normalized to 0–1 over the workers that fit when the cycle starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from tunefleet.placement.model import Requirement, WorkerState

Selection = Literal["best_fit", "first_fit", "min_satisfying"]
Category = Literal["inference", "training", "other"]
Key = tuple[float, ...]

TRAINING_KINDS: Final = frozenset({"sft", "lora_sft", "dpo", "ppo", "training"})
_GIB: Final = float(1 << 30)
_LAMBDAS: Final[dict[Category, float]] = {"inference": 0.4, "training": 0.8, "other": 0.5}


def category(kind: str) -> Category:
    """Return the category whose λ applies to a task type."""
    if kind == "inference":
        return "inference"
    return "training" if kind in TRAINING_KINDS else "other"


@dataclass(frozen=True, slots=True)
class Policy:
    """How a worker is selected among those that fit.

    Args:
        lambdas: Category of kinds → weight of throughput, from 0 to 1; cost has the remaining weight.
        jitter: Amplitude of the tie-breaking noise in the score.
        reuse: Whether workers with the model and datasets in their cache are preferred.
    """

    selection: Selection = "best_fit"
    lambdas: Mapping[Category, float] = field(default_factory=lambda: dict(_LAMBDAS))
    jitter: float = 1e-3
    reuse: bool = True


class Ranking:
    """The order of workers for one requirement, stable during a scheduling cycle."""

    def __init__(self, policy: Policy, need: Requirement, pool: Iterable[WorkerState]) -> None:
        self._need = need
        self._policy = policy
        self._cacheable = need.names if policy.reuse else frozenset()
        self._weight = policy.lambdas[category(need.kind)]
        self._best = policy.selection == "best_fit"
        if self._best:
            found = [(self._throughput(worker), worker.cost_per_hour) for worker in pool]
            self._least_t, self._range_t = _span([throughput for throughput, _ in found])
            self._least_c, self._range_c = _span([cost for _, cost in found], spread=False)

    def key(self, worker: WorkerState) -> Key:
        """Return the sort key of a worker that fits; the lowest is taken, ties are broken by id."""
        gpu_less = 1.0 if self._need.gpu_optional and not worker.gpus else 0.0
        uncached = -float(len(self._cacheable & worker.cached)) if self._cacheable else 0.0
        return (gpu_less, uncached, *self._rule(worker))

    def score(self, worker: WorkerState) -> float:
        """Return the score of a worker that fits; higher is better."""
        if self._best:
            cost = (worker.cost_per_hour - self._least_c) / self._range_c if self._range_c else 0.0
            throughput = (self._throughput(worker) - self._least_t) / self._range_t if self._range_t else 0.0
            moved = self._policy.jitter * _jitter(self._need.key, worker.id) if self._policy.jitter else 0.0
            return self._weight * throughput - (1.0 - self._weight) * cost + moved
        return capacity(worker) if self._policy.selection == "first_fit" else -capacity(worker)

    def _rule(self, worker: WorkerState) -> Key:
        roomy = -float(worker.free[self._need.slot_class])
        if self._best:
            return (-self.score(worker), roomy, float(len(worker.gpus) - len(worker.taken)), vram(worker))
        if self._policy.selection == "first_fit":
            return (-float(bool(worker.gpus)), -vram(worker), -float(worker.memory_bytes), -float(worker.cpu))
        return (capacity(worker), worker.cost_per_hour, roomy)

    def _throughput(self, worker: WorkerState) -> float:
        """Return the throughput proxy for one task: the free GPUs, and its slot's share of memory and cores."""
        slot_class = self._need.slot_class
        if slot_class == "light":
            return float(worker.free[slot_class])
        share = worker.free[slot_class] / max(1, worker.slots.get(slot_class, 1))
        free = [gpu.memory_bytes for index, gpu in enumerate(worker.gpus) if index not in worker.taken]
        shared = worker.memory_bytes / _GIB / 2.0 + worker.cpu / 2.0
        return 100.0 * len(free) + sum(free) / _GIB + share * shared


def capacity(worker: WorkerState) -> float:
    """Return the throughput proxy of an idle worker: GPUs, their memory, main memory and cores."""
    return 100.0 * len(worker.gpus) + vram(worker) + worker.memory_bytes / _GIB / 2.0 + worker.cpu / 2.0


def vram(worker: WorkerState) -> float:
    """Return the total GPU memory of a worker, in GiB."""
    return sum(gpu.memory_bytes for gpu in worker.gpus) / _GIB


def _span(values: list[float], *, spread: bool = True) -> tuple[float, float]:
    """Return the offset and the range for normalization."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    return least, (most - least) or (most if spread else 0.0)


@lru_cache(maxsize=200_000)
def _jitter(key: str, worker_id: str) -> float:
    """Return a deterministic number from −1 to 1."""
    # By requirement and not by task: one order of workers for each requirement keeps the heaps of `Board` valid.
    digest = hashlib.md5(f"{key}:{worker_id}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big") / 0x7FFFFFFF - 1.0
