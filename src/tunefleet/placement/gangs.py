"""Gang selection: the nodes of one multi-node run, placed all together or not at all.

All nodes must run the same releases of Tunefleet and torch, since their processes communicate. Workers on different
machines are preferred over several on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tunefleet.placement.match import missing
from tunefleet.placement.model import Requirement, WorkerState


def choose(need: Requirement, workers: Sequence[WorkerState], first: str | None = None) -> list[WorkerState]:
    """Choose the workers of a gang among those that fit now.

    Returns:
        The workers, rank 0 first; empty if there are too few.
    """
    groups = _compatible_groups(need, workers)
    if first is not None:
        groups = [group for group in groups if any(worker.id == first for worker in group)]
    found = next((group for group in groups if len(group) >= need.nodes), None)
    if found is None:
        return []
    in_order = sorted(found, key=lambda worker: worker.id != first)
    return _distinct_machines_first(in_order)[: need.nodes_max]


def reserve(
    need: Requirement, workers: Iterable[WorkerState], fits: Callable[[WorkerState], bool]
) -> list[WorkerState]:
    """Choose the workers to reserve for a gang: those that fit now, then those that lack the least.

    Returns:
        As many as are needed; empty if there are too few, so that no capacity is reserved in vain.
    """
    gaps = {worker.id: (not fits(worker), gap) for worker in workers if (gap := missing(need, worker)) is not None}
    groups = _compatible_groups(need, [worker for worker in workers if worker.id in gaps])
    able = [group for group in groups if len(group) >= need.nodes]
    if not able:
        return []
    chosen = [sorted(group, key=lambda worker: (gaps[worker.id], worker.id))[: need.nodes] for group in able]
    return min(chosen, key=lambda group: [gaps[worker.id] for worker in group])


def largest(need: Requirement, workers: Iterable[WorkerState]) -> int:
    """Return the size of the largest gang that these workers could form."""
    return max((len(group) for group in _compatible_groups(need, workers)), default=0)


def _compatible_groups(need: Requirement, workers: Iterable[WorkerState]) -> list[list[WorkerState]]:
    """Group workers whose processes can communicate; the group with the best worker first."""
    groups: dict[tuple[str, bool], list[WorkerState]] = {}
    for worker in workers:
        # With optional GPUs: a node with a GPU and one without have no communication backend in common.
        with_gpu = need.gpu_optional and bool(worker.gpus)
        if worker.release:  # a worker that reports no release cannot join a gang
            groups.setdefault((worker.release, with_gpu), []).append(worker)
    return list(groups.values())


def _distinct_machines_first(workers: Sequence[WorkerState]) -> list[WorkerState]:
    """Put one worker of each machine first, then the others, each group in its order."""
    seen: set[str] = set()
    distinct: list[WorkerState] = []
    shared: list[WorkerState] = []
    for worker in workers:
        (shared if worker.host and worker.host in seen else distinct).append(worker)
        seen.add(worker.host)
    return [*distinct, *shared]
