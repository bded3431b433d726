"""Federation operations for users: create, show, start, pause, cancel and remove."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tunefleet.db import Connection
from tunefleet.db.federations import federation_chunks, federation_updates, federation_versions, federations
from tunefleet.db.federations import rounds as round_rows
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts, events, notifications, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, ForbiddenError, InputError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundReason
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, may_read, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import participants, rounds, views
from tunefleet.orchestrator.federation.participants import FederationCaller, may_manage, only_worker
from tunefleet.orchestrator.federation.status import find, may_read_updates, move, publish_event
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import channel_formats, federation_webhooks
from tunefleet.orchestrator.views import before_cursor, bounded_limit, split_page
from tunefleet.schemas.api import Page
from tunefleet.schemas.federated import FederationCreated, FederationDetail, FederationView, RoundView, UpdateView
from tunefleet.spec.options.federation_options import FederationSpec

_UNPIN_BATCH: Final = 500  # bounds the parameters of one statement


async def create(
    core: ServerContext,
    actor: Actor,
    spec: FederationSpec,
    *,
    start: bool = True,
    then: Callable[[Connection, FederationRow], object] | None = None,
) -> FederationCreated:
    """Create a federation.

    Raises:
        InputError: If the callback secret is not valid.
        ForbiddenError: If the actor may not create federations.
        QuotaError: If the project would exceed its storage quota.
    """
    may_submit(actor)
    now = core.clock.wall()
    if spec.callback_secret is not None and not channel_formats.is_signing_secret(spec.callback_secret):
        raise InputError("The callback_secret is not valid.", hint="Use `whsec_` and 24 or more bytes in base64.")

    def operation(connection: Connection) -> tuple[FederationRow, FederationDetail]:
        row = make(connection, spec, now, project=actor.project, owner=actor.owner)
        if then is not None:
            then(connection, row)
        if start:
            row = acceptance.begin(connection, row, now)
        return row, views.federation_detail(connection, row, actor)

    row, detail = await core.write(operation)
    token = participants.token_of(core.secret, row.id)
    return FederationCreated(**dict(detail), token=token, callback_secret=row.callback_secret)


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    statuses: Sequence[str] | None = None,
    owner: str | None = None,
) -> Page[FederationView]:
    """Return federations, newest first."""
    may_read(actor)
    start, count = before_cursor(cursor), bounded_limit(limit)

    def operation(connection: Connection) -> Page[FederationView]:
        found = federations.page(
            connection, project=actor.project, limit=count + 1, before=start, statuses=statuses, owner=owner
        )
        rows, next_cursor = split_page(found, count)
        items = tuple(views.federation_view(connection, row, actor) for row in rows)
        return Page[FederationView](items=items, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: ServerContext, caller: FederationCaller, reference: str) -> FederationDetail:
    """Return a federation."""
    return await core.read(
        lambda connection: views.federation_detail(connection, find(connection, caller, reference), caller)
    )


async def list_rounds(
    core: ServerContext, caller: FederationCaller, reference: str, *, limit: int = 50, cursor: str | None = None
) -> Page[RoundView]:
    """Return rounds of a federation, newest first; raises what `get` raises."""
    start, count = before_cursor(cursor), bounded_limit(limit)

    def operation(connection: Connection) -> Page[RoundView]:
        row = find(connection, caller, reference)
        found = round_rows.newest(connection, row.seq, limit=count + 1, before=start)
        shown = views.round_views(connection, row, found[:count], caller)
        next_cursor = str(shown[-1].number) if len(found) > count else None
        return Page[RoundView](items=tuple(shown), next_cursor=next_cursor)

    return await core.read(operation)


async def list_updates(
    core: ServerContext,
    caller: FederationCaller,
    reference: str,
    *,
    limit: int = 50,
    cursor: str | None = None,
    round_: int | None = None,
    worker: str | None = None,
    states: Sequence[str] | None = None,
) -> Page[UpdateView]:
    """Return updates of a federation, newest first; for a worker's own token, those of that worker.

    With `own_tokens`, the shared token and worker keys list none.

    Raises:
        ForbiddenError: If the caller may not read the updates, or not those of `worker`.
    """
    start, count = before_cursor(cursor), bounded_limit(limit)
    mine = only_worker(caller)
    wanted = worker or mine
    filters = {
        "round": None if round_ is None else [round_],
        "worker": None if wanted is None else [wanted],
        "state": states,
    }

    def operation(connection: Connection) -> Page[UpdateView]:
        row = find(connection, caller, reference)
        if not may_read_updates(caller, row, wanted or ""):
            whose = "no updates" if mine is None else f"the updates of worker {mine} only"
            raise ForbiddenError(
                f"This token shows {whose} of {row.id}.",
                hint=f"Use a key of {row.owner}, who owns {row.id}.",
            )
        found = federation_updates.page(connection, row.seq, limit=count + 1, before=start, filters=filters)
        rows, next_cursor = split_page(found, count)
        return Page[UpdateView](items=tuple(views.update_view(each) for each in rows), next_cursor=next_cursor)

    return await core.read(operation)


async def start(core: ServerContext, caller: FederationCaller, reference: str) -> FederationDetail:
    """Start a federation, or resume it after a pause; a running one stays unchanged.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        IllegalTransition: If it has ended.
    """
    return await _change(core, caller, reference, _start)


async def pause(core: ServerContext, caller: FederationCaller, reference: str) -> FederationDetail:
    """Pause a federation: it accepts updates, but closes no rounds. A paused one stays unchanged.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        IllegalTransition: If it is not running.
    """
    return await _change(core, caller, reference, _pause)


async def cancel(core: ServerContext, caller: FederationCaller, reference: str) -> FederationDetail:
    """Cancel a federation; its versions are kept.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        IllegalTransition: If it has ended.
    """
    return await _change(core, caller, reference, _cancel)


async def remove(core: ServerContext, caller: FederationCaller, reference: str) -> None:
    """Remove a federation that has ended, with its versions; unreferenced files are garbage collected.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        ConflictError: If the federation or its training task has not ended, or a task reads one of its versions.
    """

    def operation(connection: Connection) -> None:
        row = find(connection, caller, reference, lock=True)
        may_manage(caller, row)
        if not FederationStatus(row.status).final:
            raise ConflictError(
                f"Federation {row.id} is {row.status}.",
                hint=f"Cancel it first with `tunefleet federation cancel {row.id}`.",
            )
        _refuse_needed(connection, row)
        reader = next(iter(federations.readers(connection, [row.seq]).items()), None)
        if reader is not None:
            raise ConflictError(
                f"Run {reader[1]} uses a version of {row.id}.",
                hint=f"Wait until it ends, or run `tunefleet cancel {reader[1]}`.",
            )
        forget(connection, row)

    await core.write(operation)


_Operation = Callable[[Connection, FederationRow, float], FederationRow]


async def _change(
    core: ServerContext, caller: FederationCaller, reference: str, change: _Operation
) -> FederationDetail:
    def operation(connection: Connection) -> FederationDetail:
        row = find(connection, caller, reference, lock=True)
        may_manage(caller, row)
        return views.federation_detail(connection, change(connection, row, core.clock.wall()), caller)

    return await core.write(operation)


def _start(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    return row if row.status == FederationStatus.RUNNING else acceptance.begin(connection, row, now)


def _pause(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    paused = FederationStatus.PAUSED
    return row if row.status == paused else move(connection, row, paused, now)


def _cancel(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    ended = move(connection, row, FederationStatus.CANCELLED, now)
    rounds.abandon(connection, ended, RoundReason.FEDERATION_ENDED, "The federation was cancelled.", now)
    return ended


def _refuse_needed(connection: Connection, row: FederationRow) -> None:
    """Raise if the federation's newest version will become the adapter of a running training task."""
    parents = [] if row.task_seq is None else tasks.by_seqs(connection, [row.task_seq])
    for task in parents:
        if not TaskStatus(task.status).final:
            raise ConflictError(
                f"Run {task.id} takes its adapter from {row.id}, and is {task.status}.",
                hint=f"Wait until it ends, or run `tunefleet cancel {task.id}`.",
            )


def make(
    connection: Connection, spec: FederationSpec, now: float, *, project: str, owner: str, task: TaskRow | None = None
) -> FederationRow:
    """Store a federation that is not started yet, and publish its event.

    Raises:
        QuotaError: If the project would exceed its storage quota.
    """
    id_ = new_id("fed")
    values: dict[str, Any] = {
        "id": id_, "project": project, "name": spec.name or id_, "owner": owner, "status": "queued",
        "spec": spec.model_dump_json(exclude_none=True), "contract": None,
        "callback_secret": spec.callback_secret or channel_formats.new_secret(), "version": 0, "round": 0,
        "created_at": now, "task_seq": None if task is None else task.seq,
    }  # fmt: skip
    quotas.store_document(connection, project, len(values["spec"].encode()))
    row = federations.insert_one(connection, values)
    about: dict[str, Any] = {} if task is None else {"task": task.id}
    publish_event(connection, row, "federation.created", now, name=row.name, **about)
    return row


def forget(connection: Connection, row: FederationRow) -> None:
    """Delete a federation with its versions; files that nothing else needs are garbage collected later."""
    members = federations.members(connection, row.seq)
    holders = [
        row.id,
        *(federation_updates.senders(row.id, each.worker)[0] for each in members),
        federation_chunks.holder(row.id),
        *federation_updates.holders_of(connection, row.seq),
        *federation_versions.holders_of(connection, row.seq, row.id),
    ]
    for start in range(0, len(holders), _UNPIN_BATCH):
        artifacts.unpin(connection, holders[start : start + _UNPIN_BATCH])
    artifacts.delete_rows(connection, federation_versions.of_artifacts(connection, row.seq))
    for member in members:
        lane = federation_webhooks.lane(row.id, member.worker)
        notifications.give_up_channel(connection, lane, "The federation was removed.")
    events.delete_of_federation(connection, row.seq)
    federations.forget_token(connection, row.id)
    quotas.store_document(connection, row.project, -len(row.spec.encode()))
    federations.delete_one(connection, row.seq)
