"""Sweep operations for users: create, list, show, stop and remove."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import yaml

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import events, sweeps, tasks
from tunefleet.db.repositories.events import Event
from tunefleet.db.repositories.sweeps import SweepRow
from tunefleet.errors import ConflictError, Fault, SpecError
from tunefleet.lifecycle.sweep import SweepStatus
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.sweeps import study
from tunefleet.orchestrator.sweeps.status import TOPIC, find, move, spec_of, sweep_detail, sweep_view
from tunefleet.orchestrator.views import before_cursor, bounded_limit, split_page
from tunefleet.schemas.api import Page
from tunefleet.schemas.sweep import ImportanceView, SweepCreate, SweepDetail, SweepView
from tunefleet.spec import Workflow, parse_workflow
from tunefleet.spec.text import read_text


async def create(
    core: ServerContext, actor: Actor, request: SweepCreate, *, idempotency_key: str | None = None
) -> SweepDetail:
    """Store a sweep; its first trials start soon.

    Raises:
        SpecError: If the workflow file is invalid or has no `sweep`; all errors are listed.
        MachineError: If Optuna is not installed.
        ConflictError: If the idempotency key was used for another workflow file.
        ForbiddenError: If the actor may not submit.
        QuotaError: If the project would exceed its storage quota.
    """
    may_submit(actor)
    study.require_optuna()
    workflow, base = await asyncio.to_thread(_parsed, request)
    assert workflow.sweep is not None, "checked by `_parsed`"
    now = core.clock.wall()
    values: dict[str, Any] = {
        "id": new_id("sweep"), "project": actor.project, "name": workflow.sweep.name or workflow.name,
        "owner": actor.owner, "status": SweepStatus.RUNNING.value, "spec": workflow.sweep.model_dump_json(),
        "document": base, "inputs": orjson.dumps(request.inputs.get(workflow.tasks[0].name, {})).decode(),
        "idempotency_key": idempotency_key, "created_at": now,
    }  # fmt: skip

    def operation(connection: Connection) -> SweepDetail:
        first = _first_with_key(connection, actor, idempotency_key, (base, values["spec"]))
        if first is not None:
            return _detail(connection, first)
        quotas.store_document(connection, actor.project, len(base.encode()))
        row = sweeps.insert_one(connection, values)
        data = {"sweep": row.id, "name": row.name}
        events.append(connection, [Event("sweep.created", now, data=data, project=row.project)])
        wake(connection, TOPIC)
        return _detail(connection, row)

    return await core.write(operation)


def _parsed(request: SweepCreate) -> tuple[Workflow, str]:
    """Return the workflow, and its file without `sweep`."""
    workflow = parse_workflow(request.document, filename=request.filename)
    if workflow.sweep is None:
        hint = "add sweep with parameters and trials, or submit it with `tunefleet submit`"
        raise SpecError([Fault("sweep", "is required", 1, 1, hint)], filename=request.filename)
    data = read_text(request.document).data
    base: str = yaml.safe_dump(
        {key: value for key, value in data.items() if key != "sweep"}, sort_keys=False, allow_unicode=True, width=120
    )
    # Fills the cache in this thread, as for a workflow.
    redaction.text(base)
    return workflow, base


def _first_with_key(connection: Connection, actor: Actor, key: str | None, wanted: tuple[str, str]) -> SweepRow | None:
    if key is None:
        return None
    first = sweeps.by_idempotency_key(connection, project=actor.project, owner=actor.owner, key=key)
    if first is not None and (first.document, first.spec) != wanted:
        raise ConflictError(
            f"The idempotency key {key!r} was used for another workflow file ({first.id}).", hint="Use a new key."
        )
    return first


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    statuses: Sequence[str] | None = None,
    owner: str | None = None,
) -> Page[SweepView]:
    """Return sweeps, newest first."""
    may_read(actor)
    start, count = before_cursor(cursor), bounded_limit(limit)

    def operation(connection: Connection) -> Page[SweepView]:
        found = sweeps.page(
            connection, project=actor.project, limit=count + 1, before=start, statuses=statuses, owner=owner
        )
        rows, next_cursor = split_page(found, count)
        trials = sweeps.trials(connection, [row.seq for row in rows])
        items = tuple(sweep_view(row, trials.get(row.seq, [])) for row in rows)
        return Page[SweepView](items=items, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: ServerContext, actor: Actor, reference: str) -> SweepDetail:
    """Return a sweep with its trials; raises what `status.find` raises."""
    may_read(actor)
    return await core.read(lambda connection: _detail(connection, find(connection, actor, reference)))


async def importance(core: ServerContext, actor: Actor, reference: str) -> ImportanceView:
    """Return how much each parameter of a sweep matters; raises what `status.find` raises."""
    may_read(actor)
    study.require_optuna()

    def operation(connection: Connection) -> ImportanceView:
        row = find(connection, actor, reference)
        trials = sweeps.trials(connection, [row.seq]).get(row.seq, [])
        return ImportanceView(shares=study.importances(spec_of(row), trials))

    return await core.read(operation)


async def stop(core: ServerContext, actor: Actor, reference: str) -> SweepDetail:
    """Stop a sweep: no further trial starts, and running ones are stopped and kept. Idempotent while it stops.

    Raises:
        ConflictError: If it has ended.
        ForbiddenError: If it belongs to another owner.
    """
    now = core.clock.wall()

    def operation(connection: Connection) -> SweepDetail:
        row = find(connection, actor, reference)
        may_change(actor, row.owner, row.id)
        if SweepStatus(row.status).final:
            raise ConflictError(f"The sweep {row.id} is already {row.status}.")
        if row.status == SweepStatus.RUNNING:
            reason = f"Stopped by {actor.owner}."
            row = move(connection, row, SweepStatus.STOPPING, now, reason=reason, outcome=SweepStatus.STOPPED)
        return _detail(connection, row)

    return await core.write(operation)


async def remove(core: ServerContext, actor: Actor, reference: str) -> None:
    """Remove a sweep that has ended; its runs are kept.

    Raises:
        ConflictError: If it has not ended.
        ForbiddenError: If it belongs to another owner.
    """

    def operation(connection: Connection) -> None:
        row = find(connection, actor, reference)
        may_change(actor, row.owner, row.id)
        if not SweepStatus(row.status).final:
            raise ConflictError(
                f"The sweep {row.id} is {row.status}.", hint=f"Stop it first with `tunefleet sweeps stop {row.id}`."
            )
        quotas.store_document(connection, row.project, -len(row.document.encode()))
        sweeps.delete_one(connection, row.seq)

    await core.write(operation)


def _detail(connection: Connection, row: SweepRow) -> SweepDetail:
    trials = sweeps.trials(connection, [row.seq]).get(row.seq, [])
    ids = [each.task_id for each in trials if each.task_id is not None]
    return sweep_detail(row, trials, tasks.by_ids(connection, ids))
