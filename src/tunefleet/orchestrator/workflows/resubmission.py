"""Retry: submit a task again as a workflow of its own, or the unfinished tasks of a workflow."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import dependencies, tasks, workflows
from tunefleet.db.rows import DocumentRow, TaskRow, WorkflowRow
from tunefleet.errors import ConflictError, ForbiddenError, SpecError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks import relations
from tunefleet.orchestrator.tasks.inputs import is_named
from tunefleet.orchestrator.tasks.tasks import refuse_part
from tunefleet.orchestrator.workflows.submission import Submission
from tunefleet.schemas.api import RetryRequest
from tunefleet.spec import Workflow, override_document, parse_workflow

# Override paths that address a single task.
_SINGLE_TASK_PATH: Final = re.compile(r"(?:spec\.)?(?:stages|graph\.nodes)\.(?P<task>[^.]+)\.spec\.")


@dataclass(frozen=True, slots=True)
class _Task:
    row: TaskRow
    text: str
    document: DocumentRow
    upstreams: int


async def task_submission(core: ServerContext, actor: Actor, row: TaskRow, overrides: Mapping[str, Any]) -> Submission:
    """Return the submission that runs a task again, as a workflow of its own, with some fields changed.

    References of a stage are replaced by their resolved values.

    Raises:
        ConflictError: If it is a shard, or a stage that never became ready.
        ForbiddenError: If it contains secrets of another owner, and fields are changed.
        SpecError: If the changed workflow file is invalid.
    """
    found = await core.read(lambda connection: _task(connection, row))
    text = found.text
    await asyncio.to_thread(_refuse_foreign_secrets, actor, row.owner, row.id, text, overrides)
    workflow = await asyncio.to_thread(parse_workflow, text)
    alone = len(workflow.tasks) == 1 and not found.upstreams and workflow.tasks[0].condition is None
    if not alone:
        text = _as_document(found)
    text = await asyncio.to_thread(override_document, text, overrides)
    workflow = await asyncio.to_thread(_parsed, text)
    return Submission(
        actor, workflow, text, {row.name: _remaining_inputs(found.document, overrides)}, parent_task_id=row.id
    )


def _task(connection: Connection, row: TaskRow) -> _Task:
    refuse_part(connection, row, "retry")
    text = workflows.document(connection, row.workflow_seq)
    above = len(dependencies.names(connection, [row.seq]).get(row.seq, ()))
    return _Task(row, text, tasks.document(connection, row), above)


def _as_document(task: _Task) -> str:
    row = task.row
    if task.document.resolved is None and task.upstreams:
        raise ConflictError(
            f"Task {row.id} never became ready: the values of its references are not known.",
            hint=f"Retry the unfinished tasks of its workflow with `tunefleet retry {row.workflow_id}`.",
        )
    spec = orjson.loads(task.document.as_run)
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": row.name}, "spec": spec}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"


async def workflow_submission(core: ServerContext, actor: Actor, row: WorkflowRow, request: RetryRequest) -> Submission:
    """Return the submission that runs the unfinished tasks of a workflow again; results of the others are reused.

    Raises:
        ConflictError: If every task has completed, or an override addresses one that is not run again.
        ForbiddenError: If it contains secrets of another owner, and fields are changed.
        SpecError: If the changed workflow file is invalid.
    """
    text, old, done = await core.read(lambda connection: _workflow(connection, row))
    await asyncio.to_thread(_refuse_foreign_secrets, actor, row.owner, row.id, text, request.overrides)
    text = await asyncio.to_thread(override_document, text, request.overrides)
    parsed = await asyncio.to_thread(_parsed, text)
    names = [node.name for node in parsed.tasks]
    done = {name: each for name, each in done.items() if name in names}
    if len(done) == len(names):
        raise _nothing_left(row, done)
    mine = {name: _overrides_of(name, number, request.overrides) for number, name in enumerate(names)}
    for name, each in done.items():
        _refuse_override(name, each, mine[name])
    inputs = {name: _remaining_inputs(old[name][1], mine[name]) for name in names if name in old and name not in done}
    repeats = {name: each.id for name, (each, _) in old.items()}
    return Submission(actor, parsed, text, inputs, done=done, repeats=repeats, retry_of=row.id, again=request.again)


def _refuse_foreign_secrets(actor: Actor, owner: str, what: str, text: str, overrides: Mapping[str, Any]) -> None:
    """Refuse overrides of a workflow file with redacted secrets of another owner."""
    # With a changed URL the run would send the owner's key to an address of the actor's choice.
    if overrides and actor.role != "admin" and actor.owner != owner and redaction.text(text) != text:
        raise ForbiddenError(
            f"{what} contains keys of {owner}; only {owner} or an admin may change it.",
            hint="Retry it unchanged, or submit your own workflow file; ${secret:NAME} is not affected by this.",
        )


def _parsed(text: str) -> Workflow:
    try:
        return parse_workflow(text)
    except SpecError as error:
        # The user does not see the changed text: line numbers would point to a wrong place of their own file.
        raise SpecError([replace(fault, line=0, column=0) for fault in error.faults]) from None


def _nothing_left(row: WorkflowRow, done: Mapping[str, TaskRow]) -> ConflictError:
    undelivered = next((each for each in done.values() if each.status != TaskStatus.COMPLETED), None)
    if undelivered is None:
        return ConflictError(f"Every task of {row.id} has completed.", hint="Submit the workflow file again.")
    id_ = undelivered.id
    return ConflictError(
        f"{row.id} has no task left to run: the result of {undelivered.name} is on the server.",
        hint=f"Deliver it with `tunefleet artifacts deliver {id_}`, or run it again with `tunefleet retry {id_}`.",
    )


def _overrides_of(name: str, number: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that affect one task: path below its own `spec` → path as given."""
    mine = [
        path for path in overrides if not (own := _SINGLE_TASK_PATH.match(path)) or own["task"] in {name, str(number)}
    ]
    return {_SINGLE_TASK_PATH.sub("", path).removeprefix("spec."): path for path in mine}


def _refuse_override(name: str, row: TaskRow, overrides: Mapping[str, Any]) -> None:
    own = next((path for path in overrides.values() if _SINGLE_TASK_PATH.match(path)), None)
    if own is not None:
        raise ConflictError(
            f"{own} changes {name}, which is not run again: its result exists.",
            hint=f"Run it alone with `tunefleet clone {row.id} --set …`, or submit the workflow file again.",
        )


def _workflow(
    connection: Connection, row: WorkflowRow
) -> tuple[str, dict[str, tuple[TaskRow, DocumentRow]], dict[str, TaskRow]]:
    rows = tasks.of_workflows(connection, [row.seq])[row.seq]
    shards_of_tasks = dependencies.shards_of(connection, [each.seq for each in rows])
    top_level = [each for each in rows if each.seq not in shards_of_tasks]
    documents = tasks.documents(connection, [each.seq for each in top_level])
    # Tasks that this workflow reused from an earlier one are found through its edges.
    above = dependencies.upstreams(connection, [each.seq for each in top_level]).values()
    known = {each.name: each.task for every in above for each in every} | {each.name: each for each in top_level}
    computed = relations.computed(connection, known.values())
    done = {name: each for name, each in known.items() if each.status == TaskStatus.COMPLETED or each.seq in computed}
    text = workflows.document(connection, row.seq)
    return text, {each.name: (each, documents[each.seq]) for each in top_level}, done


def _remaining_inputs(document: DocumentRow, overrides: Mapping[str, Any]) -> dict[str, str]:
    refs: dict[str, dict[str, str]] = orjson.loads(document.inputs)
    return {p: ref["digest"] for p, ref in refs.items() if not is_named(p) and not _replaced(p, overrides)}


def _replaced(pointer: str, overrides: Mapping[str, Any]) -> bool:
    return any(pointer == path or pointer.startswith(f"{path}.") for path in overrides)
