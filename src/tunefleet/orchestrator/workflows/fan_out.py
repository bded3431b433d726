"""Spread one task over workers: split it into parts, and make one result of theirs.

The whole runs without an attempt of its own for as long as its parts do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import shards, tasks, workflows
from tunefleet.db.repositories.shards import ShardRow
from tunefleet.db.repositories.task_transitions import Move, New, enter
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.federation import task_federations
from tunefleet.orchestrator.federation.status import SETTLING
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.observability import trace_links
from tunefleet.orchestrator.scheduling import cluster_state
from tunefleet.orchestrator.scheduling.cluster_state import Presences
from tunefleet.orchestrator.tasks import commands, sharding_causes
from tunefleet.orchestrator.views import moment
from tunefleet.orchestrator.workflows import part_results
from tunefleet.placement import Fit, Requirement, match
from tunefleet.spec import asked_shards

# The most parts that are made where the spec does not say how many.
MAX_AUTO: Final = 8
# Where a spread task ran, in its result and in v1's record.
MANY_WORKERS: Final = "MULTI"
# Topic that is notified when the parts of a task have ended whose files are to be put together.
JOINING: Final = "joining"


def count(connection: Connection, spec: Mapping[str, Any], need: Requirement, project: str, now: float) -> int:
    """Return how many parts a task is split into; 1 if it is not."""
    most = asked_shards(spec)
    if most == 1:
        return 1
    wanted = min(MAX_AUTO, _able(connection, need, project, now)) if most is None else most
    data = spec.get("data")
    items = data.get("items") if isinstance(data, Mapping) else None
    return max(1, min(wanted, len(items)) if isinstance(items, list) else wanted)


def _able(connection: Connection, need: Requirement, project: str, now: float) -> int:
    online = {row.id for row in worker_rows.all_rows(connection) if row.status == "online"}
    able = 0
    for worker in cluster_state.serving(cluster_state.states(connection, Presences(now, {})), project):
        verdict = match(cluster_state.whose(need, project), worker)
        able += worker.id in online and not worker.pulls and (isinstance(verdict, Fit) or not verdict.lasting)
    return able


def split(connection: Connection, row: TaskRow, spec: Mapping[str, Any], inputs: str, total: int, now: float) -> Move:
    """Store the parts of a task that is ready, and return its move.

    Args:
        inputs: JSON: pointer → digest and name of an artifact.
    """
    plain = _without_spreading(spec)
    wait_s = (spec.get("limits") or {}).get("max_queue_s")
    shared = {name: value for name, value in row._asdict().items() if name in _SHARED}
    new = []
    for number in range(total):
        part = {**plain, "shard": {"index": number, "total": total, "contiguous": True}}
        own = {
            "id": new_id("task"), "name": f"{row.name}#{number}", "created_at": now,
            "queue_deadline": None if wait_s is None else now + wait_s,
        }  # fmt: skip
        new.append(New({**shared, **own}, orjson.dumps(part).decode(), inputs))
    workflows.add_open(connection, row.workflow_id, total)
    parts = enter(connection, new, now)
    shards.insert_all(
        connection, [ShardRow(part.seq, row.seq, row.id, number, total) for number, part in enumerate(parts)]
    )
    tasks.copy_inputs(connection, row.id, [part.id for part in parts])
    trace_links.inherit(connection, {part.id: row.id for part in parts})
    if spec.get("federation") is not None:
        task_federations.make(connection, row, spec["federation"], now)
    return Move(row, TaskReason.SPLIT, changes={"started_at": now, "error": None}, data={"shards": total})


def _without_spreading(spec: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in spec.items() if key != "parallel"}
    if "resources" in plain:
        plain["resources"] = {key: value for key, value in plain["resources"].items() if key != "replicas"}
    return plain


_SHARED: Final = frozenset({
    "project", "workflow_id", "workflow_seq", "kind", "slot_class", "owner", "parent_task_id", "priority", "rank",
    "requirement_key", "max_attempts", "backoff_s", "retry_on", "on_lost", "max_runtime_s",
})  # fmt: skip


def after_parts(connection: Connection, parents: Iterable[int], now: float) -> list[Move]:
    """Return the ends of spread tasks whose parts have ended: all of them well, or one of them not.

    One whose parts have exported files goes on running until those are one file: `joining` ends it.
    """
    rows = [row for row in tasks.by_seqs(connection, parents, lock=True) if row.status == TaskStatus.RUNNING]
    found = shards.of_parents(connection, [row.seq for row in rows])
    federated = federations.of_tasks(connection, [row.seq for row in rows], lock=True)
    moves = []
    for row in rows:
        parts = found[row.seq]
        if row.seq in federated:
            moves += _after_federated(connection, row, federated[row.seq], parts, now)
            continue
        bad = next((p for p in parts if p.status in {TaskStatus.FAILED, TaskStatus.CANCELLED}), None)
        if bad is not None:
            moves.append(_spoilt(row, bad))
        elif all(part.status == TaskStatus.COMPLETED for part in parts):
            results = results_of(connection, parts)
            if part_results.exported(results) is None:
                moves.append(finished(connection, row, parts, part_results.merge(results), now))
            else:
                wake(connection, JOINING)
    return moves


def _after_federated(
    connection: Connection, row: TaskRow, federation: FederationRow, parts: Sequence[TaskRow], now: float
) -> list[Move]:
    """Go on without the parts that are over; what comes of all of them is `settling`'s affair."""
    bad = task_federations.part_ended(connection, federation, parts, now)
    if bad is not None:
        return [_spoilt(row, bad)]
    wake(connection, SETTLING)
    return []


def results_of(connection: Connection, parts: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """Return what parts have found, in their order."""
    documents = tasks.documents(connection, [part.seq for part in parts])
    return [orjson.loads(documents[part.seq].result or b"{}").get("result") or {} for part in parts]


def finished(
    connection: Connection, row: TaskRow, parts: Sequence[TaskRow], result: Mapping[str, Any], now: float
) -> Move:
    """Store what a spread task has found, and return its end."""
    tasks.set_outcomes(connection, [(row.seq, _envelope(row, parts, result, now), None)])
    return Move(row, TaskReason.FINISHED, changes={"error": None})


def _spoilt(row: TaskRow, part: TaskRow) -> Move:
    if part.status == TaskStatus.CANCELLED:
        error = f"Its part {part.name} ({part.id}) was cancelled."
        return Move(row, TaskReason.UPSTREAM_CANCELLED, changes={"error": error})
    error = f"Its part {part.name} ({part.id}) failed{f': {part.error}' if part.error else '.'}"
    return Move(row, TaskReason(part.reason or TaskReason.CRASHED), changes={"error": error})


def after_wholes(connection: Connection, parts: Iterable[int], now: float) -> list[Move]:
    """Cancel what still runs or waits of spread tasks that have ended; what runs is asked, the rest is returned."""
    rows = [row for row in tasks.by_seqs(connection, parts, lock=True) if not TaskStatus(row.status).final]
    running = [row for row in rows if row.status == TaskStatus.RUNNING]
    waiting = [row for row in rows if row.status != TaskStatus.RUNNING]
    commands.ask(connection, running, now)
    causes = sharding_causes.causes(connection, waiting)
    for reason in dict.fromkeys(reason for reason, _ in causes.values()):
        commands.void(connection, [row for row in waiting if causes[row.seq][0] is reason], reason, now)
    return [Move(row, causes[row.seq][0], changes={"error": causes[row.seq][1]}) for row in waiting]


def _envelope(row: TaskRow, parts: Sequence[TaskRow], result: Mapping[str, Any], now: float) -> str:
    metadata = {"attempt": 0, "name": row.name, "kind": row.kind, "workflow_id": row.workflow_id}
    envelope = {
        "task_id": row.id,
        "worker_id": MANY_WORKERS,
        "metadata": metadata,
        "received_at": moment(now).isoformat(),
        "result": {**result, "shards": [part.id for part in parts]},
    }
    return orjson.dumps(envelope).decode()
