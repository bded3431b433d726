"""Tasks, their specs, results and trace contexts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, update

from tunefleet.db import project_queries
from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.rows import DocumentRow, TaskRow
from tunefleet.db.tables.core import requirements, task_documents, task_inputs, task_tags, tasks
from tunefleet.db.tables.operations import endpoint_tasks, task_traces
from tunefleet.lifecycle.task import FINAL

_FINAL: Final = tuple(status.value for status in FINAL)
_BY_IDS = select(tasks).where(tasks.c.id.in_(bindparam("ids", expanding=True)))
_LOCKED = _BY_IDS.with_for_update()
_BY_SEQS = select(tasks).where(tasks.c.seq.in_(bindparam("seqs", expanding=True))).order_by(tasks.c.seq)
# Locked in ascending order: two transactions that lock the same tasks cannot deadlock.
_LOCKED_SEQS = _BY_SEQS.with_for_update()
_NEEDS: Final = (
    "slot_class", "priority", "rank", "requirement_key", "max_attempts", "backoff_s", "retry_on", "on_lost",
    "max_runtime_s", "merge_key", "model", "dataset", "method",
)  # fmt: skip
_DOCUMENTS = select(task_documents).where(task_documents.c.task_seq.in_(bindparam("seqs", expanding=True)))
_OUTCOME = Bulk(
    update(task_documents)
    .where(task_documents.c.task_seq == bindparam("b_task_seq"))
    .values(result=bindparam("b_result"), detail=bindparam("b_detail")),
    ["b_task_seq", "b_result", "b_detail"],
)
_DESIRE = (
    update(tasks)
    .where(tasks.c.id == bindparam("b_id"))
    .values(desired=bindparam("b_desired"), generation=tasks.c.generation + 1)
)
_REACHED = (
    update(tasks)
    .where(tasks.c.id == bindparam("b_id"), tasks.c.reached < bindparam("b_generation"))
    .values(reached=bindparam("b_generation"))
)
_STALLED = update(tasks).where(tasks.c.id == bindparam("b_id")).values(stalled_since=bindparam("b_since"))


def use_artifacts(connection: Connection, pairs: Iterable[tuple[str, str]]) -> None:
    """Record which tasks read which artifacts; existing rows stay."""
    wanted = set(pairs)
    if not wanted:
        return
    mine = task_inputs.c.task_id.in_({task_id for task_id, _ in wanted})
    known = {(row.task_id, row.artifact_id) for row in connection.execute(select(task_inputs).where(mine))}
    rows = [{"task_id": task_id, "artifact_id": artifact_id} for task_id, artifact_id in sorted(wanted - known)]
    if rows:
        connection.execute(insert(task_inputs), rows)


def copy_inputs(connection: Connection, task_id: str, to: Sequence[str]) -> None:
    """Record that tasks read the same artifacts as another one."""
    mine = select(task_inputs.c.artifact_id).where(task_inputs.c.task_id == task_id)
    found = list(connection.execute(mine).scalars())
    use_artifacts(connection, [(each, artifact_id) for each in to for artifact_id in found])


def add_requirement(connection: Connection, key: str, body: str) -> None:
    """Store the requirements of a group of tasks, unless they exist."""
    if not connection.execute(select(exists().where(requirements.c.key == key))).scalar():
        connection.execute(insert(requirements).values(key=key, body=body))


def requirement_bodies(connection: Connection, keys: Sequence[str]) -> dict[str, str]:
    """Return the requirements with these keys."""
    found = connection.execute(select(requirements).where(requirements.c.key.in_(list(keys))))
    return {key: body for key, body in found}


def by_ids(connection: Connection, ids: Sequence[str], *, lock: bool = False) -> dict[str, TaskRow]:
    """Return tasks by id; unknown ids are omitted."""
    if not ids:
        return {}
    found = connection.execute(_LOCKED if lock else _BY_IDS, {"ids": list(ids)})
    rows = (TaskRow(*row) for row in found)
    return {row.id: row for row in rows}


def of_project(connection: Connection, project: str, seqs: Sequence[int]) -> set[int]:
    """Return which of these tasks, by `seq`, belong to a project."""
    query = select(tasks.c.seq).where(tasks.c.project == project, tasks.c.seq.in_(list(seqs)))
    return set(connection.execute(query).scalars()) if seqs else set()


def by_prefix(connection: Connection, prefix: str, project: str, limit: int) -> list[TaskRow]:
    """Return tasks whose id has a prefix."""
    query = project_queries.with_prefix(tasks, prefix, project, limit)
    return [TaskRow(*row) for row in connection.execute(query)]


def of_workflows(connection: Connection, workflow_seqs: Sequence[int]) -> dict[int, list[TaskRow]]:
    """Return the tasks of workflows by the workflow's `seq`, in the order of the workflow file."""
    found: dict[int, list[TaskRow]] = {seq: [] for seq in workflow_seqs}
    query = select(tasks).where(tasks.c.workflow_seq.in_(list(workflow_seqs))).order_by(tasks.c.seq)
    for row in connection.execute(query):
        task = TaskRow(*row)
        found[task.workflow_seq].append(task)
    return found


def counts(connection: Connection, workflow_seqs: Sequence[int]) -> dict[int, int]:
    """Return the number of tasks of workflows, by the workflow's `seq`."""
    query = select(tasks.c.workflow_seq, func.count()).where(tasks.c.workflow_seq.in_(list(workflow_seqs)))
    return {seq: count for seq, count in connection.execute(query.group_by(tasks.c.workflow_seq))}


def document(connection: Connection, row: TaskRow) -> DocumentRow:
    """Return spec and result of a task."""
    return DocumentRow(*connection.execute(_DOCUMENTS, {"seqs": [row.seq]}).one())


def documents(connection: Connection, seqs: Sequence[int]) -> dict[int, DocumentRow]:
    """Return specs and results of tasks by `seq`."""
    if not seqs:
        return {}
    rows = (DocumentRow(*row) for row in connection.execute(_DOCUMENTS, {"seqs": list(seqs)}))
    return {row.task_seq: row for row in rows}


def notes(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """Return the notes of tasks by `seq`; tasks without notes are omitted."""
    if not seqs:
        return {}
    query = select(task_documents.c.task_seq, task_documents.c.notes).where(
        task_documents.c.task_seq.in_(list(seqs)), task_documents.c.notes.is_not(None)
    )
    return {seq: text for seq, text in connection.execute(query)}


def set_title(connection: Connection, seq: int, title: str | None) -> None:
    """Rename a task for people; `None` restores its name in the workflow file."""
    connection.execute(update(tasks).where(tasks.c.seq == seq).values(title=title))


def set_notes(connection: Connection, seq: int, text: str | None) -> None:
    """Store a task's notes; `None` removes them."""
    connection.execute(update(task_documents).where(task_documents.c.task_seq == seq).values(notes=text))


def by_seqs(connection: Connection, seqs: Iterable[int], *, lock: bool = False) -> list[TaskRow]:
    """Return tasks by `seq`, in ascending order."""
    wanted = list(seqs)
    if not wanted:
        return []
    return [TaskRow(*row) for row in connection.execute(_LOCKED_SEQS if lock else _BY_SEQS, {"seqs": wanted})]


def resolve(connection: Connection, row: TaskRow, *, spec: str, inputs: str) -> None:
    """Store the final spec of a task that becomes ready: resolved references, inputs and requirements.

    Args:
        inputs: JSON: pointer → digest and name of an artifact.
    """
    values = {name: getattr(row, name) for name in _NEEDS}
    connection.execute(update(tasks).where(tasks.c.seq == row.seq).values(values))
    here = task_documents.c.task_seq == row.seq
    connection.execute(update(task_documents).where(here).values(resolved=spec, inputs=inputs))


def set_outcomes(connection: Connection, outcomes: Sequence[tuple[int, str | None, str | None]]) -> None:
    """Store result and traceback of tasks."""
    _OUTCOME.run(connection, outcomes)


def run_alone(connection: Connection, seqs: Sequence[int]) -> None:
    """Exclude tasks from running together with others."""
    connection.execute(update(tasks).where(tasks.c.seq.in_(list(seqs))).values(merge_key=None))


def desire(connection: Connection, task_id: str, action: str) -> None:
    """Set the desired state of a running task; the generation distinguishes the worker's report from earlier ones."""
    connection.execute(_DESIRE, [{"b_id": task_id, "b_desired": action}])


def set_reached(connection: Connection, reports: Iterable[tuple[str, int]]) -> None:
    """Store the generation of the desired state that workers have reached."""
    rows = [{"b_id": task_id, "b_generation": generation} for task_id, generation in reports]
    if rows:
        connection.execute(_REACHED, rows)


def set_stalled(connection: Connection, task_id: str, since: float | None) -> None:
    """Store since when a running task has written nothing; `None` if it is not stalled."""
    connection.execute(_STALLED, [{"b_id": task_id, "b_since": since}])


def in_use(connection: Connection, artifact_id: str) -> list[str]:
    """Return the ids of unfinished tasks that read an artifact."""
    query = (
        select(tasks.c.id)
        .join(task_inputs, task_inputs.c.task_id == tasks.c.id)
        .where(task_inputs.c.artifact_id == artifact_id, tasks.c.status.not_in(_FINAL))
    )
    return list(connection.execute(query).scalars())


def reads_artifact(connection: Connection, task_id: str, artifact_ids: Sequence[str]) -> bool:
    """Return whether a task reads one of these artifacts."""
    query = exists().where(task_inputs.c.task_id == task_id, task_inputs.c.artifact_id.in_(list(artifact_ids)))
    return bool(connection.execute(select(query)).scalar())


def delete_rows(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete tasks and their specs."""
    seqs = [row.seq for row in rows]
    connection.execute(delete(tasks).where(tasks.c.seq.in_(seqs)))
    connection.execute(delete(task_documents).where(task_documents.c.task_seq.in_(seqs)))
    connection.execute(delete(task_tags).where(task_tags.c.task_seq.in_(seqs)))
    connection.execute(delete(task_inputs).where(task_inputs.c.task_id.in_([row.id for row in rows])))
    connection.execute(delete(endpoint_tasks).where(endpoint_tasks.c.task_seq.in_(seqs)))


class TraceRow(NamedTuple):
    """Trace context of a task.

    Args:
        traceparent: The task's span in W3C format.
        parent: The span of its submission, in the same format; `None` if there was none.
    """

    task_id: str
    traceparent: str
    parent: str | None = None


_NEW_TRACE: Final = Bulk(insert(task_traces), TraceRow._fields)
_TRACES_OF = select(task_traces).where(task_traces.c.task_id.in_(bindparam("ids", expanding=True)))


def add_traces(connection: Connection, rows: Iterable[TraceRow]) -> None:
    """Store the trace contexts of new tasks."""
    _NEW_TRACE.run(connection, list(rows))


def traces_of(connection: Connection, ids: Sequence[str]) -> dict[str, TraceRow]:
    """Return the trace contexts of tasks, by task; tasks without one are omitted."""
    if not ids:
        return {}
    return {row[0]: TraceRow(*row) for row in connection.execute(_TRACES_OF, {"ids": list(ids)})}


def delete_traces(connection: Connection, ids: Sequence[str]) -> None:
    """Delete the trace contexts of deleted tasks."""
    connection.execute(delete(task_traces).where(task_traces.c.task_id.in_(list(ids))))


_TAGS_OF = (
    select(task_tags)
    .where(task_tags.c.task_seq.in_(bindparam("seqs", expanding=True)))
    .order_by(task_tags.c.task_seq, task_tags.c.tag)
)


def tags_of(connection: Connection, seqs: Sequence[int]) -> dict[int, list[str]]:
    """Return the tags of tasks in alphabetical order, by `seq`; tasks without tags are omitted."""
    found: dict[int, list[str]] = {}
    if seqs:
        for seq, tag in connection.execute(_TAGS_OF, {"seqs": list(seqs)}):
            found.setdefault(seq, []).append(tag)
    return found


def add_tags(connection: Connection, seq: int, tags: Collection[str]) -> None:
    """Add tags to a task; existing ones stay."""
    missing = sorted(set(tags).difference(tags_of(connection, [seq]).get(seq, ())))
    if missing:
        connection.execute(insert(task_tags), [{"task_seq": seq, "tag": tag} for tag in missing])


def remove_tags(connection: Connection, seq: int, tags: Collection[str]) -> None:
    """Remove tags from a task; others stay."""
    connection.execute(delete(task_tags).where(task_tags.c.task_seq == seq, task_tags.c.tag.in_(list(tags))))


def replace_tags(connection: Connection, seq: int, tags: Collection[str]) -> None:
    """Set the tags of a task."""
    connection.execute(delete(task_tags).where(task_tags.c.task_seq == seq, task_tags.c.tag.not_in(list(tags))))
    add_tags(connection, seq, tags)
