"""Which workers make up a gang: the nodes of one training, placed all together or not at all.

All of them must run the same releases, since their processes talk to each other. Workers on different machines come
first; several of one machine do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tunefleet.placement.match import missing
from tunefleet.placement.model import Requirement, WorkerState


def choose(need: Requirement, workers: Sequence[WorkerState], first: str | None = None) -> list[WorkerState]:
    """Choose the workers of a gang among those that fit now.

    Returns:
        The workers, the leading one first; none if they are too few.
    """
    groups = _alike(need, workers)
    if first is not None:
        groups = [group for group in groups if any(worker.id == first for worker in group)]
    found = next((group for group in groups if len(group) >= need.nodes), None)
    if found is None:
        return []
    in_order = sorted(found, key=lambda worker: worker.id != first)
    return _spread(in_order)[: need.nodes_max]


def keep(need: Requirement, workers: Iterable[WorkerState], fits: Callable[[WorkerState], bool]) -> list[WorkerState]:
    """Choose the workers that gather what becomes free for a gang: those that fit now, and who has the least to wait.

    Returns:
        As many as are needed; none if there are too few, which then keep nothing from anybody.
    """
    gaps = {worker.id: (not fits(worker), gap) for worker in workers if (gap := missing(need, worker)) is not None}
    groups = _alike(need, [worker for worker in workers if worker.id in gaps])
    able = [group for group in groups if len(group) >= need.nodes]
    if not able:
        return []
    chosen = [sorted(group, key=lambda worker: (gaps[worker.id], worker.id))[: need.nodes] for group in able]
    return min(chosen, key=lambda group: [gaps[worker.id] for worker in group])


def largest(need: Requirement, workers: Iterable[WorkerState]) -> int:
    """Return how many of some workers could make up one gang."""
    return max((len(group) for group in _alike(need, workers)), default=0)


def _alike(need: Requirement, workers: Iterable[WorkerState]) -> list[list[WorkerState]]:
    """Group workers that can talk to each other; the group with the best worker first."""
    groups: dict[tuple[str, bool], list[WorkerState]] = {}
    for worker in workers:
        # Where GPUs are welcome and not needed, a node with one and a node without have no backend in common.
        with_gpu = need.gpu_optional and bool(worker.gpus)
        if worker.release:  # else it does not say: it cannot be in a gang
            groups.setdefault((worker.release, with_gpu), []).append(worker)
    return list(groups.values())


def _spread(workers: Sequence[WorkerState]) -> list[WorkerState]:
    """Put one worker of each machine first, then those that share one, both in their order."""
    seen: set[str] = set()
    alone: list[WorkerState] = []
    shared: list[WorkerState] = []
    for worker in workers:
        (shared if worker.host and worker.host in seen else alone).append(worker)
        seen.add(worker.host)
    return [*alone, *shared]
