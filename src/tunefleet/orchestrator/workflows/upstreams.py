"""Upstream tasks of a submission: in the same workflow, submitted earlier, or by the files that a task loads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks
from tunefleet.db.repositories.dependencies import EdgeRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import Fault
from tunefleet.lifecycle.task import FINAL, TaskStatus
from tunefleet.orchestrator.tasks import inputs, relations, transitions
from tunefleet.spec import TaskNode
from tunefleet.spec.documents.dependencies import TASK_ID_PREFIX, Edge
from tunefleet.spec.documents.paths import NamedTask, named_tasks


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that is being stored."""

    row: TaskRow
    node: TaskNode
    named: Sequence[NamedTask]


def edges_of(
    connection: Connection, project: str, waiting: Sequence[Waiting], done: Mapping[str, TaskRow], faults: list[Fault]
) -> list[EdgeRow]:
    """Return the edges to upstream tasks.

    Loading a task's files has the effect of `dependsOn`: the task is awaited, and cannot be removed before the loading
    task has ended.

    Args:
        done: Stage name → task of an earlier workflow that replaces the stage.
        faults: Errors are appended here.
    """
    ids = {id_ for each in waiting for id_ in (*each.node.external, *(named.task_id for named in each.named))}
    # Locked: a task that ends concurrently ends either before this transaction, or after it and then sees the edge.
    others = tasks.by_ids(connection, sorted(ids | {row.id for row in done.values()}), lock=True)
    faults += [Fault("spec", f"{name} was removed") for name, row in done.items() if row.id not in others]
    by_name = {each.node.name: each.row for each in waiting} | dict(done)
    known = _known(connection, project, others)
    found: list[EdgeRow] = []
    for each in waiting:
        above = [(name, by_name[name]) for name in each.node.depends_on]
        above += [(row.id, row) for row in _external(each.node, known, faults)]
        above += [(row.id, row) for row in _named(connection, each.node, each.named, known, faults)]
        first: dict[int, EdgeRow] = {}
        for name, row in above:
            first.setdefault(row.seq, EdgeRow(each.row.seq, row.seq, row.id, name))
        found += first.values()
    return found


def faults_of(connection: Connection, project: str, nodes: Sequence[TaskNode]) -> list[Fault]:
    """Return the errors of references to tasks submitted earlier; nothing is stored or locked."""
    loads = [named_tasks(node.raw) for node in nodes]
    ids = {id_ for node in nodes for id_ in node.external} | {each.task_id for named in loads for each in named}
    known = _known(connection, project, tasks.by_ids(connection, sorted(ids)))
    faults: list[Fault] = []
    for node, named in zip(nodes, loads, strict=True):
        _external(node, known, faults)
        _named(connection, node, named, known, faults)
    return faults


@dataclass(frozen=True, slots=True)
class _Known:
    """Tasks that were submitted earlier, by id."""

    rows: Mapping[str, TaskRow]
    computed: Collection[int]
    passed: Collection[int]

    def problem(self, id_: str) -> str | None:
        """Return why a task cannot be an upstream task; None if it can."""
        row = self.rows.get(id_)
        if row is None:
            return "which does not exist"
        status = TaskStatus(row.status)
        if status in FINAL and status != TaskStatus.COMPLETED and row.seq not in self.computed:
            return f"which is already {row.status}"
        return None


def _known(connection: Connection, project: str, others: Mapping[str, TaskRow]) -> _Known:
    rows = {id_: row for id_, row in others.items() if row.project == project}
    return _Known(rows, relations.computed(connection, rows.values()), transitions.passed(connection, rows.values()))


def _external(node: TaskNode, known: _Known, faults: list[Fault]) -> list[TaskRow]:
    found = []
    for edge in node.strangers:
        problem = known.problem(edge.upstream)
        row = known.rows.get(edge.upstream)
        if problem is None or (row is not None and row.seq in known.passed):
            found.append(known.rows[edge.upstream])
        else:
            faults.append(
                edge.fault(f"{_edge_text(edge)} {edge.upstream}, {problem}", _hint(edge.upstream, known.rows))
            )
    return found


def _named(
    connection: Connection, node: TaskNode, loads: Sequence[NamedTask], known: _Known, faults: list[Fault]
) -> list[TaskRow]:
    found = []
    for named in loads:
        other = known.rows.get(named.task_id)
        problem = known.problem(named.task_id)
        if other is not None and problem is None:
            found.append(other)
        elif named.alone and not _may_have_files(connection, named, other):
            message = f"{node.name} loads files of {named.task_id}, {problem}"
            faults.append(node.fault(named.pointer, message, _hint(named.task_id, known.rows)))
    return found


def _edge_text(edge: Edge) -> str:
    if edge.why == "reference":
        return f"{edge.text} of {edge.task} needs"
    return f"the condition of {edge.task} asks for" if edge.why == "condition" else f"{edge.task} depends on"


def _hint(id_: str, others: Mapping[str, TaskRow]) -> str:
    if id_ in others:
        return f"run it again with `tunefleet retry {id_}`"
    return "use a full id from `tunefleet ls --all`"


def _may_have_files(connection: Connection, named: NamedTask, task: TaskRow | None) -> bool:
    """Whether files may exist for a task that cannot be an upstream task."""
    if task is None:  # maybe a task folder of another system, on a worker or a shared mount
        return not named.task_id.startswith(TASK_ID_PREFIX)
    return bool(inputs.left_by(connection, task.project, [named]))
