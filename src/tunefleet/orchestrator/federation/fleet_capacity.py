"""How many shards of a federated training run a fleet can run at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunefleet.placement import Candidate, FreeCapacity, Policy, Requirement, WorkerState


def shortage(spec: Mapping[str, Any], need: Requirement, fleet: Sequence[WorkerState]) -> tuple[str, bool] | None:
    """Explain how a fleet is too small for a federated training run.

    Returns:
        A clause, and whether rounds cannot complete because of it; None if all shards can run at the same time, none
        can run at all, or the task is not a federated training run.
    """
    federation = spec.get("federation")
    parts = federation.get("workers") if isinstance(federation, Mapping) else None
    if not isinstance(federation, Mapping) or not isinstance(parts, int) or spec.get("shard") is not None:
        return None
    concurrent = _at_a_time(need, fleet, parts)
    if concurrent in {0, parts}:
        return None
    least = federation.get("min_workers", 2)
    few = isinstance(least, int) and concurrent < least
    more = f"a round needs {least}, so no round can complete; let {parts} run at a time"
    then = (
        f"{more} (`tunefleet up --workers {parts}`, or more machines)" if few else "the others join when there is room"
    )
    return f"a federation of {parts} parts, of which this fleet runs {concurrent} at a time: {then}.", few


def _at_a_time(need: Requirement, fleet: Sequence[WorkerState], parts: int) -> int:
    """Return how many of the shards fit on a fleet that is otherwise idle."""
    # Asks the scheduler's own placement, so that the answer cannot differ from what it will do.
    candidates = [Candidate(f"part-{number}", need, float(number)) for number in range(parts)]
    return len(FreeCapacity([_idle(worker) for worker in fleet], Policy()).assign(candidates).assignments)


def _idle(worker: WorkerState) -> WorkerState:
    return replace(
        worker,
        present=True,
        free=dict(worker.slots),
        takes=None,
        cpu_taken=0,
        memory_taken=0,
        memory_free_bytes=None,
        taken=frozenset(),
        gpus=tuple(replace(gpu, free_bytes=None, used_by=None) for gpu in worker.gpus),
        cordoned=frozenset(),
        closed=None,
        kept_for=None,
    )
