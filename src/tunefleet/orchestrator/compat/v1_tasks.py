"""Tasks for v1 clients: the response to a submission, the plain list, and a task with both sets of field names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, dependencies, task_list, workflows
from tunefleet.db.repositories import tasks as task_rows
from tunefleet.db.repositories.task_list import TaskSelection
from tunefleet.db.rows import AttemptRow, DocumentRow, TaskRow
from tunefleet.lifecycle.task import FINAL, OUTCOMES, RetryBudget, TaskStatus
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks import relations as related
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.tasks.fan_out import MANY_WORKERS
from tunefleet.orchestrator.tasks.relations import Related
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.api import WorkflowDetail
from tunefleet.schemas.v1_tasks import RecordFields, RecordStatus, Submitted, SubmittedTask, TaskAnswer, TaskRecord

# Maximum number of tasks in the plain list.
NEWEST: Final = 1000
# Characters of workflow files and specs after which the plain list ends: each record repeats the complete workflow
# file, so that a large one would be sent once per stage.
LISTED_CHARACTERS: Final = 16_000_000
# Records built at a time, so that little more is read than is sent.
_PIECE: Final = 50
_TRAINING_KINDS: Final = frozenset({"sft", "lora_sft", "dpo", "ppo"})
_WORDS: Final[Mapping[str, RecordStatus]] = {
    "pending": "PENDING",
    "queued": "PENDING",
    "dispatched": "DISPATCHED",
    "running": "DISPATCHED",
    "paused": "DISPATCHED",
    "completed": "DONE",
    "skipped": "DONE",
    "failed": "FAILED",
    "cancelled": "FAILED",
}
_FAILURES: Final = frozenset(
    reason.value for reason, outcome in OUTCOMES.items() if outcome.budget in {RetryBudget.ATTEMPTS, RetryBudget.LOST}
)


def word(status: str) -> RecordStatus:
    """Return v1's name of a status."""
    return _WORDS[status]


async def submitted(core: ServerContext, workflow: WorkflowDetail) -> Submitted:
    """Return the response to a submission: the stored tasks."""
    ids = [task.id for task in workflow.tasks]

    def operation(connection: Connection) -> Submitted:
        rows = task_rows.by_ids(connection, ids)
        about = _RecordData.of(connection, [rows[id_] for id_ in ids if id_ in rows])
        wholes = [row for row in about.rows if row.seq not in about.related.wholes]
        made = [_submitted(about, row, core.settings.topic) for row in wholes]
        return Submitted(count=len(made), tasks=tuple(made))

    return await core.read(operation)


async def newest(core: ServerContext, actor: Actor) -> tuple[list[TaskRecord], int | None]:
    """Return the newest tasks as records, and the `seq` to list older ones from; None if there are none."""
    may_read(actor)

    def operation(connection: Connection) -> tuple[list[TaskRecord], int | None]:
        found = task_list.page(connection, TaskSelection(actor.project), limit=NEWEST + 1, behind=None)
        rows = [row for row, _ in found]
        made: list[TaskRecord] = []
        characters = 0
        for start in range(0, min(len(rows), NEWEST), _PIECE):
            about = _RecordData.of(connection, rows[start : min(start + _PIECE, NEWEST)])
            for row in about.rows:
                characters += len(about.texts[row.workflow_seq]) + len(about.specs[row.seq].spec)
                if made and characters > LISTED_CHARACTERS:
                    return made, rows[len(made) - 1].seq
                made.append(_record(about, row, core.settings.topic))
        return made, rows[NEWEST - 1].seq if len(rows) > NEWEST else None

    return await core.read(operation)


async def get(core: ServerContext, actor: Actor, task_id: str, *, v1: bool = False) -> TaskAnswer:
    """Return a task with our field names and v1's.

    Raises:
        ConflictError: If the id is an ambiguous prefix.
    """
    detail = await tasks.get(core, actor, task_id)

    def operation(connection: Connection) -> TaskAnswer:
        row = tasks.find(connection, actor, detail.id)
        about = _RecordData.of(connection, [row])
        failed = next((each.worker_id for each in reversed(detail.attempt_list) if each.reason in _FAILURES), None)
        words = word(detail.status), detail.status
        ours = dict(detail)
        fields = dict(_fields(about, row, core.settings.topic)) | {"last_failed_worker": failed}
        ours["status"], other = words if v1 else words[::-1]
        if v1:
            ours["parent_task_id"] = detail.shard_of
        return TaskAnswer(
            **{**fields, **ours},
            record_status=other,
            pending_dependencies=tuple(id_ for id_, _ in related.waits_for(connection, row)),
            dependents=tuple(dependencies.dependents(connection, row.seq)),
            completed=detail.status in {TaskStatus.COMPLETED, TaskStatus.SKIPPED},
            failed=detail.status in {TaskStatus.FAILED, TaskStatus.CANCELLED},
        )

    return await core.read(operation)


@dataclass(frozen=True, slots=True)
class _RecordData:
    """The data of several records, read together."""

    rows: Sequence[TaskRow]
    related: Related
    specs: Mapping[int, DocumentRow]
    texts: Mapping[int, str]
    sizes: Mapping[int, int]
    held: Mapping[str, AttemptRow]
    open_upstreams: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(cls, connection: Connection, rows: Sequence[TaskRow]) -> _RecordData:
        """Load the data."""
        flows = list({row.workflow_seq for row in rows})
        above = dependencies.upstreams(connection, [row.seq for row in rows if row.status == TaskStatus.PENDING])
        return cls(
            rows,
            related.of(connection, rows),
            task_rows.documents(connection, [row.seq for row in rows]),
            workflows.documents(connection, flows),
            task_rows.counts(connection, flows),
            attempts.by_ids(connection, [row.attempt_id for row in rows if row.attempt_id]),
            {
                seq: tuple(each.task.id for each in every if TaskStatus(each.task.status) not in FINAL)
                for seq, every in above.items()
            },
        )


def _submitted(about: _RecordData, row: TaskRow, topic: str) -> SubmittedTask:
    return SubmittedTask(
        task_id=row.id,
        status=word(row.status),
        assigned_worker=_worker(row),
        topic=topic,
        waiting_on=about.open_upstreams.get(row.seq, ()),
        depends_on=tuple(id_ for id_, _ in about.related.upstreams.get(row.seq, ())),
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        load=_load(orjson.loads(about.specs[row.seq].spec)),
    )


def _record(about: _RecordData, row: TaskRow, topic: str) -> TaskRecord:
    whole = about.related.wholes.get(row.seq)
    return TaskRecord(
        **dict(_fields(about, row, topic)),
        status=word(row.status),
        error=row.error,
        attempts=row.attempts,
        parent_task_id=whole.parent_id if whole else None,
    )


def _fields(about: _RecordData, row: TaskRow, topic: str) -> RecordFields:
    spec = redaction.tree(orjson.loads(about.specs[row.seq].spec))
    whole = about.related.wholes.get(row.seq)
    attempt = about.held.get(row.attempt_id or "")
    return RecordFields(
        task_id=row.id,
        raw_yaml=redaction.text(about.texts[row.workflow_seq]),
        parsed={"apiVersion": "tunefleet/v1", "metadata": {"name": row.name, "owner": row.owner}, "spec": spec},
        submission_id=row.workflow_id,
        task_type=row.kind,
        category="training" if row.kind in _TRAINING_KINDS else "inference" if row.kind == "inference" else "other",
        assigned_worker=_worker(row),
        topic=topic,
        submitted_at=to_datetime(row.created_at).isoformat(),
        submitted_ts=row.created_at,
        last_queue_ts=row.queued_at,
        dispatched_ts=attempt.offered_at if attempt else None,
        started_ts=row.started_at,
        finished_ts=row.finished_at,
        max_attempts=row.max_attempts,
        shard_index=whole.number if whole else None,
        shard_total=whole.total if whole else None,
        next_retry_at=row.ready_at if row.status == TaskStatus.QUEUED and row.ready_at else None,
        graph_node_name=row.name if about.sizes[row.workflow_seq] > 1 else None,
        load=_load(spec),
        merged_children=tuple(about.related.carried.get(row.seq, ())),
        merged_parent_id=about.related.merged.get(row.seq),
        merge_key=row.merge_key,
    )


def _worker(row: TaskRow) -> str | None:
    spread = row.status == TaskStatus.RUNNING and row.worker_id is None
    return MANY_WORKERS if spread else row.worker_id


def _load(spec: Mapping[str, Any]) -> int:
    resources = spec.get("resources")
    load = resources.get("estimatedLoad", 0) if isinstance(resources, Mapping) else 0
    return load if isinstance(load, int) else 0
