"""What must be so in every store at every moment, whatever was done: read from its tables, by nobody's services."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Table, select

from tunefleet.db.tables.core import metadata
from tunefleet.lifecycle.task import FINAL, TRANSITIONS, TaskStatus

T: Mapping[str, Table] = metadata.tables
Rows = list[Row[Any]]
OPEN = ("offered", "accepted")
_OF_TASKS = (
    "resumes", "void_offers", "commands", "task_inputs", "launches", "task_notices", "task_traces", "journal_room",
    "reported_predictions",
)  # fmt: skip
"""Tables whose rows belong to a task and go with it."""


def broken(connection: Connection) -> list[str]:
    """Return every law that does not hold, in words."""
    read = {name: list(connection.execute(select(T[name]))) for name in ("tasks", "attempts", "workflows", "commands")}
    return [said for law in _LAWS for said in law(connection, read)]


def _statuses(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    for task in read["tasks"]:
        if (task.finished_at is not None) != TaskStatus(task.status).final:
            yield f"{task.id} is {task.status} and ended at {task.finished_at}"
        if task.status == "queued" and (task.worker_id or task.attempt_id or task.desired != "run"):
            yield f"{task.id} is queued, with {task.worker_id}, {task.attempt_id}, {task.desired}"
        if task.desired == "cancel" and task.status not in {"running", "cancelled"}:
            yield f"{task.id} is to be cancelled and is {task.status}"


def _workflows(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    for flow in read["workflows"]:
        mine = [task.status for task in read["tasks"] if task.workflow_seq == flow.seq]
        left = sum(status not in FINAL for status in mine)
        if not mine:
            yield f"{flow.id} has no tasks"
        if flow.open_tasks != left or (flow.finished_at is None) != bool(left):
            yield f"{flow.id} counts {flow.open_tasks} open tasks of {mine}, ended at {flow.finished_at}"
        if (flow.status == "running") != bool(left):
            yield f"{flow.id} is {flow.status} with {mine}"


def _attempts(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    tasks = {task.id: task for task in read["tasks"]}
    held: dict[str, list[Any]] = {}
    for row in read["attempts"]:
        if row.task_id not in tasks:
            yield f"{row.id} is an attempt of {row.task_id}, which is gone"
        elif row.state in OPEN and (row.gang_of in {None, row.id}):
            held.setdefault(row.task_id, []).append(row)
        if row.state in OPEN and row.finished_at is not None:
            yield f"{row.id} is {row.state} and ended"
        if row.gang_of not in {None, row.id} and row.state in OPEN:
            head = next((each for each in read["attempts"] if each.id == row.gang_of), None)
            if head is None or head.state not in OPEN:
                yield f"{row.id} is an open node of a gang that has ended"
    wholes = {row.parent_seq for row in connection.execute(select(T["shards"]))}
    for task in tasks.values():
        mine = held.get(task.id, [])
        if task.seq in wholes or task.status not in {"dispatched", "running"}:
            if mine:
                yield f"{task.id} is {task.status} and has the open attempts {[row.id for row in mine]}"
        elif len(mine) != 1 or mine[0].id != task.attempt_id or mine[0].worker_id != task.worker_id:
            found = [(row.id, row.worker_id, row.state) for row in mine]
            yield f"{task.id} is {task.status} in {task.attempt_id} at {task.worker_id}, and open are {found}"
        elif mine[0].gang_of is None and {"dispatched": "offered", "running": "accepted"}[task.status] != mine[0].state:
            yield f"{task.id} is {task.status}, and its attempt {mine[0].state}"
        numbers = sorted(
            row.number for row in read["attempts"] if row.task_id == task.id and row.gang_of in {None, row.id}
        )
        if numbers != list(range(1, task.attempts + 1)):
            yield f"{task.id} counts {task.attempts} attempts, and has {numbers}"


def _accounts(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    """What ran is counted once, and what never began or still runs is not."""
    counted = Counter(row.attempt_id for row in connection.execute(select(T["usage"].c.attempt_id)))
    for row in read["attempts"]:
        wanted = int(row.accepted_at is not None and row.finished_at is not None)
        if counted[row.id] != wanted:
            yield f"{row.id} ({row.state}, {row.reason}) is counted {counted[row.id]} times as used"


def _waiting(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    """Nobody is forgotten: who waits, waits for somebody who has not ended."""
    status = {task.seq: task.status for task in read["tasks"]}
    above: dict[int, list[int]] = {}
    for edge in connection.execute(select(T["task_edges"])):
        above.setdefault(edge.task_seq, []).append(edge.upstream_seq)
        if edge.task_seq not in status:
            yield f"the edge of {edge.task_seq} belongs to no task"
    for task in read["tasks"]:
        if task.status == "pending" and not any(
            status.get(seq) not in {None, *FINAL} for seq in above.get(task.seq, [])
        ):
            yield f"{task.id} waits, and all before it have ended"


def _commands(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    open_ = {row.id for row in read["attempts"] if row.state in OPEN}
    for row in read["commands"]:
        if row.attempt_id is not None and row.attempt_id not in open_ and row.state in {"pending", "acknowledged"}:
            yield f"the command {row.id} ({row.command}) is {row.state}, and its attempt has ended"


def _events(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    """The history of each task is a path through the table of its life, and ends where the task is."""
    events = T["events"]
    last: dict[str, TaskStatus] = {}
    for row in connection.execute(select(events).where(events.c.task_id.is_not(None)).order_by(events.c.id)):
        told = json.loads(row.data).get("status")
        if told is None or not row.kind.startswith("task."):
            continue
        after, before = TaskStatus(told), last.get(row.task_id, TaskStatus.PENDING)
        if after not in TRANSITIONS[before] and not (before is after is TaskStatus.PENDING):
            yield f"{row.task_id} went from {before} to {after} ({row.kind})"
        last[row.task_id] = after
    for task in read["tasks"]:
        if last.get(task.id) != task.status:
            yield f"{task.id} is {task.status}, and its history says {last.get(task.id)}"
    for gone in last.keys() - {task.id for task in read["tasks"]}:
        yield f"{gone} is removed, and its events are not"


def _orphans(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    ids, seqs = {task.id for task in read["tasks"]}, {task.seq for task in read["tasks"]}
    for name in _OF_TASKS:
        for row in connection.execute(select(T[name].c.task_id).where(T[name].c.task_id.is_not(None))):
            if row.task_id not in ids:
                yield f"a row of {name} belongs to {row.task_id}, which is gone"
    for row in connection.execute(select(T["task_documents"].c.task_seq)):
        if row.task_seq not in seqs:
            yield f"a document belongs to the task {row.task_seq}, which is gone"


def _documents(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    """What a project stores of documents is counted where it is stored and where it is removed."""
    sizes = {row.workflow_seq: row.size_bytes for row in connection.execute(select(T["workflow_documents"]))}
    kept: Counter[str] = Counter()
    for flow in read["workflows"]:
        kept[flow.project] += sizes[flow.seq]
    for row in connection.execute(select(T["projects"].c.name, T["projects"].c.document_bytes)):
        if row.document_bytes != kept[row.name]:
            yield f"{row.name} counts {row.document_bytes} bytes of documents and has {kept[row.name]}"


def _results(connection: Connection, read: Mapping[str, Rows]) -> Iterator[str]:
    documents = T["task_documents"]
    has = {
        row.task_seq for row in connection.execute(select(documents.c.task_seq).where(documents.c.result.is_not(None)))
    }
    for task in read["tasks"]:
        if task.status == "completed" and task.seq not in has:
            yield f"{task.id} is completed and has no result"


_LAWS: tuple[Callable[[Connection, Mapping[str, Rows]], Iterator[str]], ...] = (
    _statuses, _workflows, _attempts, _accounts, _waiting, _commands, _events, _orphans, _documents,
    _results,
)  # fmt: skip
