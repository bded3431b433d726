"""Task transitions and their consequences, in one transaction.

All status changes go through `switch`, so that dependent tasks are evaluated immediately, whatever ended the task.
`db.repositories.task_transitions` changes rows and knows no dependencies.

Dependents of an ended task become ready, or are skipped, failed or cancelled, until nothing follows any more.
Everything happens in the transaction that ended the first task, so that no task stays pending after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection, undone_if_failed
from tunefleet.db.fleet import clusters
from tunefleet.db.repositories import dependencies, task_transitions, tasks
from tunefleet.db.repositories.dependencies import Upstream
from tunefleet.db.repositories.task_transitions import Move
from tunefleet.db.rows import DocumentRow, TaskRow
from tunefleet.errors import InputError, NotFoundError, SpecError, StoreError
from tunefleet.lifecycle.task import FINAL, TaskReason, TaskStatus
from tunefleet.orchestrator.tasks import fan_out, inputs, relations, spec_columns, task_federations
from tunefleet.spec import dump_task_spec, load_task_spec
from tunefleet.spec.documents.paths import named_tasks
from tunefleet.spec.expressions.lookup import ConditionSpec, unmet
from tunefleet.spec.expressions.references import references_of, resolve
from tunefleet.spec.tasks.command import with_upstream

__all__ = ["Move", "begin", "switch"]
_FINAL: Final = frozenset(status.value for status in FINAL)
log = logging.getLogger(__name__)
# Keys that the server evaluates; workers do not get them.
_NOT_FOR_WORKERS: Final = ("condition", "dependsOn")
Envelopes = Mapping[str, Mapping[str, Any]]
_ENDS: Final = (
    (TaskStatus.FAILED, TaskReason.UPSTREAM_FAILED, "failed"),
    (TaskStatus.CANCELLED, TaskReason.UPSTREAM_CANCELLED, "was cancelled"),
    (TaskStatus.SKIPPED, TaskReason.UPSTREAM_SKIPPED, "was skipped"),
)


def switch(connection: Connection, moves: Sequence[Move], now: float) -> list[TaskRow]:
    """Change the status of tasks; tasks that depend on ended ones become ready, or end too."""
    moved = task_transitions.switch(connection, moves, now)
    _follow(connection, moved, now)
    return moved


def begin(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Evaluate pending tasks that were just stored: their upstream tasks may have ended before."""
    switch(connection, evaluate(connection, rows, now), now)


def _follow(connection: Connection, moved: Sequence[TaskRow], now: float) -> None:
    ended = [row for row in moved if row.status in _FINAL]
    # Skipped tasks end too: follow until nothing depends on them any more.
    while ended:
        further = task_transitions.switch(connection, _consequences(connection, ended, now), now)
        ended = [row for row in further if row.status in _FINAL]


def _consequences(connection: Connection, ended: Sequence[TaskRow], now: float) -> list[Move]:
    """Return the direct consequences of ended tasks."""
    found = dependencies.touched(connection, [row.seq for row in ended])
    # Locked: two upstream tasks may end in concurrent transactions, and the later one must see the other's end.
    moves = evaluate(connection, tasks.by_seqs(connection, found.dependents, lock=True), now)
    moves += fan_out.after_shards(connection, found.parents, now)
    if found.parts:
        task_federations.end_with(connection, ended, now)
    return moves + fan_out.after_parents(connection, found.parts, now)


def evaluate(connection: Connection, rows: Sequence[TaskRow], now: float) -> list[Move]:
    """Return the transitions of the pending tasks that need not wait any longer."""
    waiting = [row for row in rows if row.status == TaskStatus.PENDING]
    above = dependencies.upstreams(connection, [row.seq for row in waiting])
    computed = relations.computed(connection, (each.task for every in above.values() for each in every))
    skipped_over = passed(connection, (each.task for every in above.values() for each in every))
    moves, ready = [], []
    for row in waiting:
        open_ = [
            each for each in above[row.seq] if not _done(each.task, row, computed) and each.task.seq not in skipped_over
        ]
        blocked = _blocked(row, open_)
        if blocked is not None:
            moves.append(blocked)
        elif not open_:
            ready.append(row)
    seqs = {each.task.seq for row in ready for each in above[row.seq]} - skipped_over
    documents = tasks.documents(connection, [*(row.seq for row in ready), *seqs])
    envelopes = {seq: _envelope(documents[seq]) for seq in seqs}  # parsed once for all dependents
    for row in ready:
        results = {each.name: envelopes[each.task.seq] for each in above[row.seq] if each.task.seq not in skipped_over}
        skipped = frozenset(each.name for each in above[row.seq] if each.task.seq in skipped_over)
        moves.append(_ready_or_failed(connection, row, documents[row.seq], results, skipped, now))
    return moves


def passed(connection: Connection, rows: Iterable[TaskRow]) -> frozenset[int]:
    """Return the `seq` of tasks that were skipped by a condition with `on_skipped: run`."""
    skipped = {row.seq for row in rows if row.reason == TaskReason.CONDITION_UNMET}
    specs = {seq: orjson.loads(each.spec) for seq, each in tasks.documents(connection, sorted(skipped)).items()}
    return frozenset(seq for seq, spec in specs.items() if (spec.get("condition") or {}).get("on_skipped") == "run")


def _done(task: TaskRow, row: TaskRow, computed: Collection[int]) -> bool:
    """Whether a task satisfies a dependent; with a failed delivery, only for dependents submitted afterwards."""
    if task.seq not in computed or task.finished_at is None:
        return task.status == TaskStatus.COMPLETED
    return task.finished_at <= row.created_at and task.workflow_seq != row.workflow_seq


def _envelope(document: DocumentRow) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(document.result) if document.result else {}
    return found


def _blocked(row: TaskRow, above: Sequence[Upstream]) -> Move | None:
    """Return the end of a task that can never start because of an upstream task."""
    first: dict[str, Upstream] = {}
    for each in above:
        first.setdefault(each.task.status, each)
    for status, reason, verb in _ENDS:
        cause = first.get(status)
        if cause is not None:
            return Move(row, reason, changes={"error": _upstream_error(cause, verb)}, data={"upstream": cause.task.id})
    return None


def _upstream_error(cause: Upstream, verb: str) -> str:
    task = cause.task
    if task.reason in {reason.value for _, reason, _ in _ENDS} and task.error:
        return task.error  # it already names the first cause
    return f"{cause.name} ({task.id}) {verb}{f': {task.error}' if task.error else '.'}"


def _ready_or_failed(
    connection: Connection,
    row: TaskRow,
    document: DocumentRow,
    results: Envelopes,
    skipped: Collection[str],
    now: float,
) -> Move:
    """Make a task ready; an unexpected error fails this task alone."""
    # An error here must not roll back the end of the upstream task: its worker would send the end, and the server
    # would evaluate it, again and again.
    try:
        with undone_if_failed(connection):
            return _make_ready(connection, row, document, results, skipped, now)
    except StoreError:
        raise  # an error of the store, not of the input
    except Exception as error:
        log.exception("Cannot resolve the spec of %s from the results of its upstream tasks.", row.id)
        kind = type(error).__name__
        return _bad_input(row, f"The server failed to resolve the spec from the results of upstream tasks ({kind}).")


def _make_ready(
    connection: Connection,
    row: TaskRow,
    document: DocumentRow,
    results: Envelopes,
    skipped: Collection[str],
    now: float,
) -> Move:
    """Return the transition of a task whose upstream tasks have completed, or were skipped with `on_skipped: run`."""
    raw: dict[str, Any] = orjson.loads(document.spec)
    try:
        unmet_reason = _skipped(raw, results, skipped)
        if unmet_reason is not None:
            return Move(
                row, TaskReason.CONDITION_UNMET, changes={"error": unmet_reason}, data={"message": unmet_reason}
            )
        written = {key: value for key, value in raw.items() if key not in _NOT_FOR_WORKERS}
        _refuse_skipped(written, skipped)
        spec = load_task_spec(with_upstream(resolve(written, results), results))
        whole = dump_task_spec(spec)
        named = inputs.named(connection, row.project, row.name, whole)
    except SpecError as error:
        problems = "; ".join(f"{fault.path}: {fault.message}" for fault in error.faults)
        return _bad_input(row, f"The spec is not valid after its references were resolved: {problems}.")
    except (InputError, NotFoundError) as error:
        return _bad_input(row, str(error))
    need = spec_columns.need_of(spec, row.id)
    spec_columns.store(connection, need)
    if spec.engine is not None:
        clusters.name_engines(connection, [(row, spec.engine.type)])
    refs = orjson.loads(document.inputs) | orjson.loads(inputs.dump(named))
    # A task with an engine has workers of its own: no other task is coalesced into it.
    merge_key = spec_columns.merge_key(row.owner, row.project, whole, refs) if spec.engine is None else None
    ready = row._replace(
        **spec_columns.columns(spec, need, now, row.created_at), **spec_columns.described(whole), merge_key=merge_key
    )
    tasks.resolve(connection, ready, spec=orjson.dumps(whole).decode(), inputs=orjson.dumps(refs).decode())
    read = {each.artifact_id for each in named.values()} | inputs.left_by(connection, row.project, named_tasks(whole))
    tasks.use_artifacts(connection, [(row.id, artifact_id) for artifact_id in read])
    parts = fan_out.count(connection, whole, need, row.project, now)
    if parts > 1:
        return fan_out.split(connection, ready, whole, orjson.dumps(refs).decode(), parts, now)
    changes = {"queued_at": now, "queue_deadline": spec_columns.queue_deadline(spec, now), "error": None}
    return Move(ready, TaskReason.READY, changes=changes)


def _bad_input(row: TaskRow, error: str) -> Move:
    return Move(row, TaskReason.BAD_INPUT, changes={"error": error})


def _refuse_skipped(written: Mapping[str, Any], skipped: Collection[str]) -> None:
    """Raise InputError for a reference to a task that was skipped."""
    for where, found in references_of(written, skipped) if skipped else ():
        if found.node in skipped:
            raise InputError(
                f"spec.{where}: {found.text} has no value: {found.node} was skipped.", hint=_skipping(found.node)
            )
    for each in (written.get("inputs") or ()) if written.get("taskType") == "python" else ():
        name = each.get("stage") if isinstance(each, Mapping) else each
        if name in skipped:
            raise InputError(f"spec.inputs names {name}, which was skipped.", hint=_skipping(str(name)))


def _skipping(name: str) -> str:
    return f"Set `on_skipped: skip` in the condition of {name} to skip this task as well."


def _skipped(raw: Mapping[str, Any], results: Envelopes, skipped: Collection[str]) -> str | None:
    """Return why a task's condition is not met; None if it is met."""
    if raw.get("condition") is None:
        return None
    condition = ConditionSpec.model_validate(raw["condition"])
    if condition.node in skipped:
        return f"Its condition is not met: {condition.node} was skipped."
    return unmet(condition, results.get(condition.node, {}))
