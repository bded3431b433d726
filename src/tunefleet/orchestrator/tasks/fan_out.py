"""Sharding: split one task into shards for several workers, and merge their results.

The parent task is `running` without an attempt of its own while its shards run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import dependencies, tasks, workflows
from tunefleet.db.repositories.dependencies import ShardRow
from tunefleet.db.repositories.task_transitions import Move, New, enter
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.federation.status import SETTLING
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.observability import task_spans
from tunefleet.orchestrator.tasks import commands, relations, task_federations
from tunefleet.orchestrator.views import to_datetime
from tunefleet.placement import Fit, Requirement, match
from tunefleet.spec import asked_shards

# Maximum number of shards where the spec does not set one.
MAX_AUTO: Final = 8
# The worker id of a sharded task, in its result and in the v1 record.
MANY_WORKERS: Final = "MULTI"
# Topic that is notified when the shards of a task have ended and their files are to be merged.
SHARD_MERGE_TOPIC: Final = "joining"
_SHARED: Final = frozenset({
    "project", "workflow_id", "workflow_seq", "kind", "slot_class", "owner", "parent_task_id", "priority", "rank",
    "requirement_key", "max_attempts", "backoff_s", "retry_on", "on_lost", "max_runtime_s", "model", "dataset",
    "method",
})  # fmt: skip
_LISTED: Final = "items"
_SUMMED: Final = "usage"
_EXPORT: Final = "jsonl_export"
_COUNTS: Final = ("count", "record_count")
Results = Sequence[Mapping[str, Any]]


def count(connection: Connection, spec: Mapping[str, Any], need: Requirement, project: str, now: float) -> int:
    """Return the number of shards of a task; 1 if it is not sharded."""
    most = asked_shards(spec)
    if most == 1:
        return 1
    wanted = min(MAX_AUTO, _count_able(connection, need, project, now)) if most is None else most
    data = spec.get("data")
    items = data.get("items") if isinstance(data, Mapping) else None
    return max(1, min(wanted, len(items)) if isinstance(items, list) else wanted)


def _count_able(connection: Connection, need: Requirement, project: str, now: float) -> int:
    online = {row.id for row in worker_rows.all_rows(connection) if row.status == "online"}
    able = 0
    for worker in cluster_state.serving(cluster_state.states(connection, FleetSnapshot(now, {})), project):
        result = match(cluster_state.with_project(need, project), worker)
        able += worker.id in online and not worker.pulls and (isinstance(result, Fit) or not result.permanent)
    return able


def split(connection: Connection, row: TaskRow, spec: Mapping[str, Any], inputs: str, total: int, now: float) -> Move:
    """Store the shards of a ready task, and return its transition.

    Args:
        inputs: JSON: pointer → digest and name of an artifact.
    """
    unsharded = _without_sharding(spec)
    wait_s = (spec.get("limits") or {}).get("max_queue_s")
    shared = {name: value for name, value in row._asdict().items() if name in _SHARED}
    new = []
    for number in range(total):
        part = {**unsharded, "shard": {"index": number, "total": total, "contiguous": True}}
        own = {
            "id": new_id("task"), "name": f"{row.name}#{number}", "created_at": now,
            "queue_deadline": None if wait_s is None else now + wait_s,
        }  # fmt: skip
        new.append(New({**shared, **own}, orjson.dumps(part).decode(), inputs))
    workflows.add_open(connection, row.workflow_id, total)
    parts = enter(connection, new, now)
    dependencies.insert_shards(
        connection, [ShardRow(part.seq, row.seq, row.id, number, total) for number, part in enumerate(parts)]
    )
    tasks.copy_inputs(connection, row.id, [part.id for part in parts])
    task_spans.inherit(connection, {part.id: row.id for part in parts})
    if spec.get("federation") is not None:
        task_federations.make(connection, row, spec["federation"], now)
    return Move(row, TaskReason.SPLIT, changes={"started_at": now, "error": None}, data={"shards": total})


def _without_sharding(spec: Mapping[str, Any]) -> dict[str, Any]:
    unsharded = {key: value for key, value in spec.items() if key != "parallel"}
    if "resources" in unsharded:
        unsharded["resources"] = {key: value for key, value in unsharded["resources"].items() if key != "replicas"}
    return unsharded


def after_shards(connection: Connection, parents: Iterable[int], now: float) -> list[Move]:
    """Return the ends of sharded tasks: all shards have completed, or one has failed or was cancelled.

    A task whose shards have exported files keeps running until those are merged: `shard_merge` ends it.
    """
    # Locked: two shards may end in transactions of different servers, and only one of them may end the parent.
    rows = [row for row in tasks.by_seqs(connection, parents, lock=True) if row.status == TaskStatus.RUNNING]
    found = dependencies.shards_of_parents(connection, [row.seq for row in rows])
    federated = federations.of_tasks(connection, [row.seq for row in rows], lock=True)
    moves = []
    for row in rows:
        parts = found[row.seq]
        if row.seq in federated:
            moves += _after_federated(connection, row, federated[row.seq], parts, now)
            continue
        failed = next((p for p in parts if p.status in {TaskStatus.FAILED, TaskStatus.CANCELLED}), None)
        if failed is not None:
            moves.append(_failed_by(row, failed))
        elif all(part.status == TaskStatus.COMPLETED for part in parts):
            results = results_of(connection, parts)
            if exported_results(results) is None:
                moves.append(finished(connection, row, parts, merge_results(results), now))
            else:
                wake(connection, SHARD_MERGE_TOPIC)
    return moves


def _after_federated(
    connection: Connection, row: TaskRow, federation: FederationRow, parts: Sequence[TaskRow], now: float
) -> list[Move]:
    """Continue without the ended shards; `task_settlement` finalizes the federation when all have ended."""
    failed = task_federations.part_ended(connection, federation, parts, now)
    if failed is not None:
        return [_failed_by(row, failed)]
    wake(connection, SETTLING)
    return []


def results_of(connection: Connection, parts: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """Return the results of shards, in their order."""
    documents = tasks.documents(connection, [part.seq for part in parts])
    return [orjson.loads(documents[part.seq].result or b"{}").get("result") or {} for part in parts]


def finished(
    connection: Connection, row: TaskRow, parts: Sequence[TaskRow], result: Mapping[str, Any], now: float
) -> Move:
    """Store the result of a sharded task, and return its end."""
    tasks.set_outcomes(connection, [(row.seq, _envelope(row, parts, result, now), None)])
    return Move(row, TaskReason.FINISHED, changes={"error": None})


def _failed_by(row: TaskRow, part: TaskRow) -> Move:
    if part.status == TaskStatus.CANCELLED:
        error = f"Its shard {part.name} ({part.id}) was cancelled."
        return Move(row, TaskReason.UPSTREAM_CANCELLED, changes={"error": error})
    error = f"Its shard {part.name} ({part.id}) failed{f': {part.error}' if part.error else '.'}"
    return Move(row, TaskReason(part.reason or TaskReason.CRASHED), changes={"error": error})


def after_parents(connection: Connection, parts: Iterable[int], now: float) -> list[Move]:
    """Cancel the remaining shards of ended tasks: request it for running ones, return the ends of the others."""
    rows = [row for row in tasks.by_seqs(connection, parts, lock=True) if not TaskStatus(row.status).final]
    running = [row for row in rows if row.status == TaskStatus.RUNNING]
    waiting = [row for row in rows if row.status != TaskStatus.RUNNING]
    # Running shards stop after their step and report it; the others have no worker to wait for.
    commands.ask(connection, running, now)
    causes = relations.shard_stop_causes(connection, waiting)
    for reason in dict.fromkeys(reason for reason, _ in causes.values()):
        commands.void(connection, [row for row in waiting if causes[row.seq][0] is reason], reason, now)
    return [Move(row, causes[row.seq][0], changes={"error": causes[row.seq][1]}) for row in waiting]


def _envelope(row: TaskRow, parts: Sequence[TaskRow], result: Mapping[str, Any], now: float) -> str:
    metadata = {"attempt": 0, "name": row.name, "kind": row.kind, "workflow_id": row.workflow_id}
    envelope = {
        "task_id": row.id,
        "worker_id": MANY_WORKERS,
        "metadata": metadata,
        "received_at": to_datetime(now).isoformat(),
        "result": {**result, "shards": [part.id for part in parts]},
    }
    return orjson.dumps(envelope).decode()


def exported_results(results: Results) -> list[Mapping[str, Any]] | None:
    """Return the exports of all shards; None if one has not uploaded its file."""
    found = [each.get(_EXPORT) for each in results]
    exports = [each for each in found if isinstance(each, Mapping) and isinstance(each.get("artifact_name"), str)]
    return exports if exports and len(exports) == len(results) else None


def merge_results(results: Results, joined: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Merge the results of shards.

    Args:
        results: The results, in the order of the shards.
        joined: Keys of the merged file, for `jsonl_export`.

    Returns:
        `items` concatenated, with `index` renumbered; their `count`; the sum of `usage`; `jsonl_export` with the keys
        of `joined`, the number of records and the exports as `parts`; any other key on which all shards agree.
    """
    if not results:
        return {}
    merged = {key: value for key, value in results[0].items() if all(_same(key, value, each) for each in results)}
    if all(isinstance(each.get(_LISTED), list) for each in results):
        merged[_LISTED] = _renumbered([item for each in results for item in each[_LISTED]])
        if any("count" in each for each in results):
            merged["count"] = len(merged[_LISTED])
    usage = [each[_SUMMED] for each in results if isinstance(each.get(_SUMMED), Mapping)]
    if usage:
        merged[_SUMMED] = _sum(usage)
    exports = [each[_EXPORT] for each in results if isinstance(each.get(_EXPORT), Mapping)]
    if exports:
        merged[_EXPORT] = {**_agreed(exports), **(joined or {}), "parts": exports}
    return merged


def _same(key: str, value: Any, other: Mapping[str, Any]) -> bool:
    return key in other and other[key] == value


def _agreed(exports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = exports[0]
    agreed = {key: value for key, value in first.items() if all(_same(key, value, each) for each in exports)}
    for name in _COUNTS:
        numbers = [each[name] for each in exports if isinstance(each.get(name), int)]
        if len(numbers) == len(exports):
            agreed[name] = sum(numbers)
    return agreed


def _renumbered(items: list[Any]) -> list[Any]:
    return [
        {**item, "index": number} if isinstance(item, Mapping) and "index" in item else item
        for number, item in enumerate(items)
    ]


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add numbers of the same name; of any other value the first is kept."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = total.get(key)
            if _number(value) and (before is None or _number(before)):
                total[key] = (before or 0) + value
            elif isinstance(value, Mapping):
                total[key] = _sum([before, value] if isinstance(before, Mapping) else [value])
            else:
                total.setdefault(key, value)
    return total


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
