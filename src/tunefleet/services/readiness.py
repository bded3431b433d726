"""What the end of tasks means for those that wait for them: ready, skipped, failed or cancelled.

Decides moves and stores what a ready task needs; `moving` makes them, and asks again until nothing follows any more.
Everything happens in the transaction that ended the first task, so no task is ever left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.errors import InputError, NotFoundError, SpecError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.services import fanout, inputs, merging, policies, requirements
from tunefleet.spec import dump_task_spec, load_task_spec
from tunefleet.spec.condition import ConditionSpec
from tunefleet.spec.condition import judge as met
from tunefleet.spec.references import resolve
from tunefleet.store import Connection, edges, tasks
from tunefleet.store.edges import Upstream
from tunefleet.store.rows import DocumentRow, TaskRow
from tunefleet.store.task_moves import Move

_NOT_FOR_WORKERS: Final = ("condition", "dependsOn")
"""What the server itself heeds, before a worker sees the spec."""

Envelopes = Mapping[str, Mapping[str, Any]]


def consequences(connection: Connection, ended: Sequence[TaskRow], now: float) -> list[Move]:
    """Return what follows at once from the end of tasks.

    Args:
        connection: Of the operation.
        ended: Tasks that have just become final.
        now: Unix time.

    Returns:
        At most one move for each task.
    """
    found = edges.touched(connection, [row.seq for row in ended])
    moves = judge(connection, tasks.by_seqs(connection, found.dependents, lock=True), now)
    moves += fanout.after_parts(connection, found.parents, now)
    return moves + fanout.after_wholes(connection, found.parts, now)


def judge(connection: Connection, rows: Sequence[TaskRow], now: float) -> list[Move]:
    """Return the moves of those pending tasks that need not wait any longer.

    Args:
        connection: Of the operation.
        rows: Tasks, locked; those that are not pending are passed over.
        now: Unix time.
    """
    waiting = [row for row in rows if row.status == TaskStatus.PENDING]
    above = edges.upstreams(connection, [row.seq for row in waiting])
    moves, ready = [], []
    for row in waiting:
        bad = _blocked(row, above[row.seq])
        if bad is not None:
            moves.append(bad)
        elif all(each.task.status == TaskStatus.COMPLETED for each in above[row.seq]):
            ready.append(row)
    seqs = {each.task.seq for row in ready for each in above[row.seq]}
    documents = tasks.documents(connection, [*(row.seq for row in ready), *seqs])
    for row in ready:
        results = {each.name: _envelope(documents[each.task.seq]) for each in above[row.seq]}
        moves.append(_begin(connection, row, documents[row.seq], results, now))
    return moves


def _envelope(document: DocumentRow) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(document.result) if document.result else {}
    return found


def _blocked(row: TaskRow, above: Sequence[Upstream]) -> Move | None:
    """Return how a task ends that can never begin, because of one before it."""
    first: dict[str, Upstream] = {}
    for each in above:
        first.setdefault(each.task.status, each)
    for status, reason, verb in _ENDS:
        cause = first.get(status)
        if cause is not None:
            return Move(row, reason, changes={"error": _told(cause, verb)}, data={"upstream": cause.task.id})
    return None


_ENDS: Final = (
    (TaskStatus.FAILED, TaskReason.UPSTREAM_FAILED, "failed"),
    (TaskStatus.CANCELLED, TaskReason.UPSTREAM_CANCELLED, "was cancelled"),
    (TaskStatus.SKIPPED, TaskReason.UPSTREAM_SKIPPED, "was skipped"),
)


def _told(cause: Upstream, verb: str) -> str:
    task = cause.task
    if task.reason in {reason.value for _, reason, _ in _ENDS} and task.error:
        return task.error  # it tells of the first one already
    return f"{cause.name} ({task.id}) {verb}{f': {task.error}' if task.error else '.'}"


def _begin(connection: Connection, row: TaskRow, document: DocumentRow, results: Envelopes, now: float) -> Move:
    """Return the move of a task whose upstreams are all completed."""
    raw: dict[str, Any] = orjson.loads(document.spec)
    try:
        unmet = _unmet(raw, results)
        if unmet is not None:
            return Move(row, TaskReason.CONDITION_UNMET, changes={"error": None}, data={"message": unmet})
        written = {key: value for key, value in raw.items() if key not in _NOT_FOR_WORKERS}
        spec = load_task_spec(resolve(written, results))
        whole = dump_task_spec(spec)
        named = inputs.named(connection, row.project, row.name, whole)
    except SpecError as error:
        said = "; ".join(f"{fault.path}: {fault.message}" for fault in error.faults)
        return _bad_input(row, f"With the results of the tasks before it, the spec is not valid: {said}.")
    except (InputError, NotFoundError) as error:
        return _bad_input(row, str(error))
    need = requirements.of(spec)
    policies.store(connection, need)
    refs = orjson.loads(document.inputs) | orjson.loads(inputs.dump(named))
    merge_key = merging.key_of(row.owner, row.project, whole, refs)
    ready = row._replace(**policies.columns(spec, need, now, row.created_at), merge_key=merge_key)
    tasks.resolve(connection, ready, spec=orjson.dumps(whole).decode(), inputs=orjson.dumps(refs).decode())
    tasks.use_artifacts(connection, [(row.id, each.artifact_id) for each in named.values()])
    parts = fanout.count(connection, whole, need, now)
    if parts > 1:
        return fanout.split(connection, ready, whole, orjson.dumps(refs).decode(), parts, now)
    changes = {"queued_at": now, "queue_deadline": policies.queue_deadline(spec, now), "error": None}
    return Move(ready, TaskReason.READY, changes=changes)


def _bad_input(row: TaskRow, error: str) -> Move:
    return Move(row, TaskReason.BAD_INPUT, changes={"error": error})


def _unmet(raw: Mapping[str, Any], results: Envelopes) -> str | None:
    """Return which condition of a task is not met, in words; None if it shall run."""
    written = raw.get("condition")
    if written is None:
        return None
    condition = ConditionSpec.model_validate(written)
    if met(condition, results.get(condition.node, {})):
        return None
    return f"Skipped: {condition.node}.{condition.field} is not {condition.equals!r}."
