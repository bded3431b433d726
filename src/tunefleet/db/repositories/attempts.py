"""Attempts: one try of a task on one worker; and where the next one starts, if not at the newest checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, delete, func, insert, select, text, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.engine.writer import note
from tunefleet.db.rows import AttemptRow, ResumeRow, TaskRow
from tunefleet.db.tables.core import attempts, resumes, task_documents, tasks
from tunefleet.db.tables.fleet import task_edges
from tunefleet.db.tables.operations import task_traces

# A literal, not a parameter: only then is the partial index used.
_OPEN = text("attempts.state IN ('offered', 'accepted')")
_BY_IDS = select(attempts).where(attempts.c.id.in_(bindparam("ids", expanding=True)))
_OF_WORKER = select(attempts).where(attempts.c.worker_id == bindparam("worker_id"), _OPEN)
_ALL_OPEN = select(attempts).where(_OPEN)
_UPDATE = Bulk(
    update(attempts)
    .where(attempts.c.id == bindparam("b_id"))
    .values(
        state=bindparam("b_state"),
        reason=bindparam("b_reason"),
        error=bindparam("b_error"),
        accepted_at=bindparam("b_accepted_at"),
        finished_at=bindparam("b_finished_at"),
        gang_point=bindparam("b_gang_point"),
        gang_failed_at=bindparam("b_gang_failed_at"),
    ),
    ["b_id", "b_state", "b_reason", "b_error", "b_accepted_at", "b_finished_at", "b_gang_point", "b_gang_failed_at"],
)
_parameters = attrgetter("id", "state", "reason", "error", "accepted_at", "finished_at", "gang_point", "gang_failed_at")
# In a gang, only the first node counts as an attempt of the task.
_HEADS = attempts.c.gang_of.is_(None) | (attempts.c.gang_of == attempts.c.id)
_INSERT = Bulk(insert(attempts), AttemptRow._fields)
_OFFERS = (
    select(
        attempts.c.id,
        attempts.c.number,
        attempts.c.slot_class,
        tasks.c.id,
        tasks.c.workflow_id,
        tasks.c.kind,
        tasks.c.name,
        func.coalesce(task_documents.c.resolved, task_documents.c.spec),
        task_documents.c.inputs,
        attempts.c.gpus,
        attempts.c.merged_into,
        task_traces.c.traceparent,
        attempts.c.gang_of,
        attempts.c.node_rank,
        tasks.c.project,
    )
    .join(tasks, tasks.c.seq == attempts.c.task_seq)
    .join(task_documents, task_documents.c.task_seq == attempts.c.task_seq)
    .outerjoin(task_traces, task_traces.c.task_id == attempts.c.task_id)
    .where(attempts.c.worker_id == bindparam("worker_id"), _OPEN, attempts.c.state == "offered")
)
_DESIRED = (
    select(attempts.c.id, tasks.c.desired, tasks.c.generation)
    .join(tasks, tasks.c.seq == attempts.c.task_seq)
    .where(attempts.c.worker_id == bindparam("worker_id"), _OPEN, attempts.c.state == "accepted")
    .where(tasks.c.generation > tasks.c.reached, _HEADS)
)
_TASKS = (
    select(tasks)
    .join(attempts, attempts.c.task_seq == tasks.c.seq)
    .where(attempts.c.worker_id == bindparam("worker_id"), _OPEN)
)
_HELD = attempts.c.slot_class + "|" + attempts.c.requirement_key + "|" + func.coalesce(attempts.c.gpus, "")
# One string per worker, not one row per attempt: a fleet has tens of thousands, most of them unchanged.
_TAKEN = (
    select(attempts.c.worker_id, func.aggregate_strings(_HELD, ";"))
    .where(_OPEN, attempts.c.merged_into.is_(None))
    .group_by(attempts.c.worker_id)
)
_WATCHED = (
    select(
        attempts.c.id,
        attempts.c.task_id,
        attempts.c.worker_id,
        attempts.c.state,
        tasks.c.desired,
        # A job's worker enforces its runtime itself, counting only the job's lifetime; it cannot end an inline task.
        case((attempts.c.slot_class == "light", attempts.c.accepted_at + tasks.c.max_runtime_s)),
    )
    .join(tasks, tasks.c.seq == attempts.c.task_seq)
    .where(_OPEN)
)
_RESUMES_OF = select(resumes).where(resumes.c.task_id.in_(bindparam("ids", expanding=True)))


class Held(NamedTuple):
    """Resources that an open attempt takes on its worker; `gpus` is empty if the worker chooses them itself."""

    slot_class: str
    requirement_key: str
    gpus: str

    def text(self) -> str:
        """Return the form that `held` parses."""
        return "|".join(self)


def held(text: str) -> list[Held]:
    """Parse a worker's value of `taken`."""
    return [Held(*each.split("|")) for each in text.split(";") if each]


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Data of an open attempt for the reaper.

    `deadline` is `None` if the run has no time limit, or its holder enforces it.
    """

    attempt_id: str
    task_id: str
    worker_id: str
    state: str
    desired: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class OfferRow:
    """Data of an offered attempt for its worker."""

    attempt_id: str
    number: int
    slot_class: str
    task_id: str
    workflow_id: str
    kind: str
    name: str
    spec: str
    inputs: str
    gpus: str | None = None
    merged_into: str | None = None
    traceparent: str | None = None
    gang_of: str | None = None
    node_rank: int | None = None
    project: str | None = None


def insert_all(connection: Connection, rows: Sequence[AttemptRow]) -> None:
    """Store new attempts."""
    _INSERT.run(connection, rows)
    note(connection, rows)


def by_ids(connection: Connection, ids: Sequence[str]) -> dict[str, AttemptRow]:
    """Return attempts by id; unknown ids are omitted."""
    if not ids:
        return {}
    rows = (AttemptRow(*row) for row in connection.execute(_BY_IDS, {"ids": list(ids)}))
    return {row.id: row for row in rows}


def open_of(connection: Connection, worker_id: str) -> dict[str, AttemptRow]:
    """Return the offered and accepted attempts of a worker."""
    rows = (AttemptRow(*row) for row in connection.execute(_OF_WORKER, {"worker_id": worker_id}))
    return {row.id: row for row in rows}


def all_open(connection: Connection) -> list[AttemptRow]:
    """Return all offered and accepted attempts."""
    return [AttemptRow(*row) for row in connection.execute(_ALL_OPEN)]


def open_rows(connection: Connection) -> list[OpenRow]:
    """Return the reaper's data of all open attempts."""
    return [OpenRow(*row) for row in connection.execute(_WATCHED)]


def of_task(connection: Connection, row: TaskRow) -> list[AttemptRow]:
    """Return the attempts of a task, oldest first; of a gang, those of the first node."""
    query = select(attempts).where(attempts.c.task_seq == row.seq, _HEADS).order_by(attempts.c.number)
    return [AttemptRow(*row) for row in connection.execute(query)]


def of_gangs(connection: Connection, gang_ids: Sequence[str]) -> dict[str, list[AttemptRow]]:
    """Return the nodes of gangs by the first node's attempt, sorted by rank."""
    found: dict[str, list[AttemptRow]] = {}
    if gang_ids:
        query = select(attempts).where(attempts.c.gang_of.in_(list(gang_ids))).order_by(attempts.c.node_rank)
        for row in (AttemptRow(*each) for each in connection.execute(query)):
            found.setdefault(row.gang_of or "", []).append(row)
    return found


def failed_since(
    connection: Connection, task_seqs: Sequence[int], reasons: Collection[str], since: float
) -> list[AttemptRow]:
    """Return tasks' attempts that failed after a time for one of the reasons, oldest first; without those of gangs."""
    if not task_seqs:
        return []
    query = (
        select(attempts)
        .where(attempts.c.task_seq.in_(list(task_seqs)), attempts.c.reason.in_(sorted(reasons)))
        .where(attempts.c.finished_at > since, attempts.c.gang_of.is_(None))
        .order_by(attempts.c.finished_at)
    )
    return [AttemptRow(*row) for row in connection.execute(query)]


def gangs_that_failed(connection: Connection, before: float) -> list[AttemptRow]:
    """Return the open first nodes of gangs in which a node lost the others before a time."""
    member = attempts.alias()
    query = (
        select(attempts)
        .join(member, member.c.gang_of == attempts.c.id)
        .where(_OPEN, attempts.c.gang_of == attempts.c.id, member.c.gang_failed_at < before)
        .distinct()
    )
    return [AttemptRow(*row) for row in connection.execute(query)]


def ran(connection: Connection, task_seqs: Sequence[int]) -> dict[int, float]:
    """Return the total runtime of tasks' ended attempts in seconds, by the task's `seq`."""
    if not task_seqs:
        return {}
    query = (
        select(attempts.c.task_seq, func.sum(attempts.c.finished_at - attempts.c.accepted_at))
        .where(attempts.c.task_seq.in_(task_seqs), attempts.c.accepted_at.is_not(None))
        .where(attempts.c.finished_at.is_not(None), _HEADS)
        .group_by(attempts.c.task_seq)
    )
    return {seq: max(0.0, seconds) for seq, seconds in connection.execute(query)}


def store(connection: Connection, rows: Iterable[AttemptRow]) -> None:
    """Update the state of attempts."""
    changed = list(rows)
    _UPDATE.run(connection, [_parameters(row) for row in changed])
    note(connection, changed)


def offers(connection: Connection, worker_id: str) -> list[OfferRow]:
    """Return the offered attempts of a worker."""
    return [OfferRow(*row) for row in connection.execute(_OFFERS, {"worker_id": worker_id})]


def tasks_of(connection: Connection, worker_id: str) -> dict[str, TaskRow]:
    """Return the tasks of a worker's open attempts by id, for an update."""
    rows = (TaskRow(*row) for row in connection.execute(_TASKS, {"worker_id": worker_id}))
    return {row.id: row for row in rows}


def taken(connection: Connection, but: Collection[str] = ()) -> dict[str, str]:
    """Return the open attempts by worker, as a string for `held`, without those that run in another attempt."""
    query = _TAKEN.where(attempts.c.id.not_in(list(but))) if but else _TAKEN
    return {worker_id: text for worker_id, text in connection.execute(query).all()}


def desired(connection: Connection, worker_id: str) -> list[tuple[str, str, int]]:
    """Return attempt id, action and generation where a worker has not reached the desired state."""
    return [tuple(row) for row in connection.execute(_DESIRED, {"worker_id": worker_id})]


def merged_into(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Return the task whose run includes an attempt, by attempt; attempts with a run of their own are omitted."""
    if not ids:
        return {}
    carrier = attempts.alias()
    query = (
        select(attempts.c.id, carrier.c.task_id)
        .join(carrier, carrier.c.id == attempts.c.merged_into)
        .where(attempts.c.id.in_(list(ids)))
    )
    return {attempt_id: task_id for attempt_id, task_id in connection.execute(query)}


def carried(connection: Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the further tasks that attempts' runs include, by attempt."""
    found: dict[str, list[str]] = {}
    if ids:
        query = select(attempts.c.merged_into, attempts.c.task_id).where(attempts.c.merged_into.in_(list(ids)))
        for attempt_id, task_id in connection.execute(query.order_by(attempts.c.id)):
            found.setdefault(attempt_id, []).append(task_id)
    return found


def delete_of_tasks(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete the attempts of deleted tasks."""
    connection.execute(delete(attempts).where(attempts.c.task_seq.in_([row.seq for row in rows])))


def put_resume(connection: Connection, row: ResumeRow) -> None:
    """Store where the next attempt of a task starts."""
    delete_resumes(connection, [row.task_id])
    connection.execute(insert(resumes).values(row._asdict()))


def resumes_of(connection: Connection, task_ids: Sequence[str]) -> dict[str, ResumeRow]:
    """Return where the next attempts of tasks start, by task id; most tasks have no row."""
    if not task_ids:
        return {}
    rows = (ResumeRow(*row) for row in connection.execute(_RESUMES_OF, {"ids": list(task_ids)}))
    return {row.task_id: row for row in rows}


def bound_to(connection: Connection, *, now: float) -> list[tuple[str, str, str]]:
    """Return the only workers with the checkpoint of a due task: worker, requirement key, project."""
    query = (
        select(resumes.c.worker_id, tasks.c.requirement_key, tasks.c.project)
        .join(tasks, tasks.c.id == resumes.c.task_id)
        .where(resumes.c.bound == 1, resumes.c.worker_id.is_not(None))
        .where(tasks.c.status == "queued", tasks.c.ready_at <= now)
        .distinct()
    )
    return [(worker_id, key, project) for worker_id, key, project in connection.execute(query)]


def delete_resumes(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the rows of tasks."""
    connection.execute(delete(resumes).where(resumes.c.task_id.in_(list(task_ids))))


def upstream_workers(connection: Connection, task_seqs: Sequence[int]) -> dict[int, str]:
    """Return the worker that ran the last dependency of each task, by the task's `seq`."""
    if not task_seqs:
        return {}
    query = (
        select(task_edges.c.task_seq, tasks.c.worker_id)
        .join(tasks, tasks.c.seq == task_edges.c.upstream_seq)
        .where(task_edges.c.task_seq.in_(list(task_seqs)), tasks.c.worker_id.is_not(None))
        .order_by(tasks.c.finished_at)
    )
    return {seq: worker_id for seq, worker_id in connection.execute(query)}


def last_workers(connection: Connection, task_seqs: Sequence[int]) -> dict[str, str]:
    """Return the worker with the job folder of the last accepted attempt, by task id."""
    if not task_seqs:
        return {}
    mine = attempts.c.task_seq.in_(list(task_seqs)) & attempts.c.accepted_at.is_not(None)
    mine &= attempts.c.gang_of.is_(None) | (attempts.c.gang_of == attempts.c.id)
    newest = select(attempts.c.task_seq, func.max(attempts.c.number).label("number")).where(mine)
    last = newest.group_by(attempts.c.task_seq).subquery()
    query = select(attempts.c.task_id, attempts.c.worker_id).join(
        last, (last.c.task_seq == attempts.c.task_seq) & (last.c.number == attempts.c.number)
    )
    return {task_id: worker_id for task_id, worker_id in connection.execute(query)}
