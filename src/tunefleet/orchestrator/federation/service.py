"""Federations as people handle them: make, show, start, pause, cancel and remove."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federations
from tunefleet.db.federations import rounds as round_rows
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import tasks
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, ForbiddenError, InputError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundReason
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, may_read, may_submit
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import deletion, participants, rounds, views
from tunefleet.orchestrator.federation.participants import Who, may_steer, only_worker
from tunefleet.orchestrator.federation.status import find, move, sees, tell
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import formats
from tunefleet.orchestrator.views import before, bounded, split
from tunefleet.schemas.api import Page
from tunefleet.schemas.federated import FederationCreated, FederationDetail, FederationView, RoundView, UpdateView
from tunefleet.spec.options.federation_options import FederationSpec


async def create(
    core: Core,
    actor: Actor,
    spec: FederationSpec,
    *,
    start: bool = True,
    then: Callable[[Connection, FederationRow], object] | None = None,
) -> FederationCreated:
    """Make a federation.

    Raises:
        InputError: If the secret for callbacks cannot be used.
        ForbiddenError: If the actor may not make rows.
        QuotaError: If the project would keep more than it may.
    """
    may_submit(actor)
    now = core.clock.wall()
    if spec.callback_secret is not None and not formats.is_secret(spec.callback_secret):
        raise InputError("The callback_secret cannot be used.", hint="Write whsec_ and base64 of 24 bytes or more.")

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
    core: Core,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    statuses: Sequence[str] | None = None,
    owner: str | None = None,
) -> Page[FederationView]:
    """Return federations, newest first."""
    may_read(actor)
    start, count = before(cursor), bounded(limit)

    def operation(connection: Connection) -> Page[FederationView]:
        found = federations.page(
            connection, project=actor.project, limit=count + 1, before=start, statuses=statuses, owner=owner
        )
        rows, next_cursor = split(found, count)
        items = tuple(views.federation_view(connection, row, actor) for row in rows)
        return Page[FederationView](items=items, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: Core, who: Who, reference: str) -> FederationDetail:
    """Return a federation."""
    return await core.read(
        lambda connection: views.federation_detail(connection, find(connection, who, reference), who)
    )


async def list_rounds(
    core: Core, who: Who, reference: str, *, limit: int = 50, cursor: str | None = None
) -> Page[RoundView]:
    """Return rounds of a federation, newest first; raises what `get` raises."""
    start, count = before(cursor), bounded(limit)

    def operation(connection: Connection) -> Page[RoundView]:
        row = find(connection, who, reference)
        found = round_rows.newest(connection, row.seq, limit=count + 1, before=start)
        shown = views.round_views(connection, row, found[:count], who)
        next_cursor = str(shown[-1].number) if len(found) > count else None
        return Page[RoundView](items=tuple(shown), next_cursor=next_cursor)

    return await core.read(operation)


async def list_updates(
    core: Core,
    who: Who,
    reference: str,
    *,
    limit: int = 50,
    cursor: str | None = None,
    round_: int | None = None,
    worker: str | None = None,
    states: Sequence[str] | None = None,
) -> Page[UpdateView]:
    """Return updates of a federation, newest first; for a worker's own token, those of that worker.

    Where each worker has its own token, the token and the keys that several may have list none.

    Raises:
        ForbiddenError: If it is none of the asker's business, or `worker` is one whose updates it may not read.
    """
    start, count = before(cursor), bounded(limit)
    mine = only_worker(who)
    wanted = worker or mine
    filters = {
        "round": None if round_ is None else [round_],
        "worker": None if wanted is None else [wanted],
        "state": states,
    }

    def operation(connection: Connection) -> Page[UpdateView]:
        row = find(connection, who, reference)
        if not sees(who, row, wanted or ""):
            whose = "no updates" if mine is None else f"the updates of the worker {mine} only"
            raise ForbiddenError(
                f"This token shows {whose} of {row.id}.",
                hint=f"Use a key of {row.owner}, who owns {row.id}.",
            )
        found = federation_updates.page(connection, row.seq, limit=count + 1, before=start, filters=filters)
        rows, next_cursor = split(found, count)
        return Page[UpdateView](items=tuple(views.update_view(each) for each in rows), next_cursor=next_cursor)

    return await core.read(operation)


async def start(core: Core, who: Who, reference: str) -> FederationDetail:
    """Let a federation run, or go on after a pause; one that runs is left as it is.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        IllegalTransition: If it has ended.
    """
    return await _change(core, who, reference, _start)


async def pause(core: Core, who: Who, reference: str) -> FederationDetail:
    """Keep a federation from closing rounds; updates are taken. One that is paused is left as it is.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        IllegalTransition: If it does not run.
    """
    return await _change(core, who, reference, _pause)


async def cancel(core: Core, who: Who, reference: str) -> FederationDetail:
    """End a federation; its versions stay.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        IllegalTransition: If it has ended.
    """
    return await _change(core, who, reference, _cancel)


async def remove(core: Core, who: Who, reference: str) -> None:
    """Forget a federation that has ended, with its versions; files that nothing else needs are collected.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        ConflictError: If it has not ended, its training has not, or a task reads one of its versions.
    """

    def operation(connection: Connection) -> None:
        row = find(connection, who, reference, lock=True)
        may_steer(who, row)
        if not FederationStatus(row.status).final:
            raise ConflictError(
                f"The federation {row.id} is {row.status}.",
                hint=f"`tunefleet federation cancel {row.id}` ends it for good.",
            )
        _refuse_wanted(connection, row)
        reader = next(iter(federations.readers(connection, [row.seq]).items()), None)
        if reader is not None:
            raise ConflictError(
                f"A version of {row.id} is read by {reader[1]}.",
                hint=f"Wait for it, or `tunefleet cancel {reader[1]}`.",
            )
        deletion.forget(connection, row)

    await core.write(operation)


_Verb = Callable[[Connection, FederationRow, float], FederationRow]


async def _change(core: Core, who: Who, reference: str, verb: _Verb) -> FederationDetail:
    def operation(connection: Connection) -> FederationDetail:
        row = find(connection, who, reference, lock=True)
        may_steer(who, row)
        return views.federation_detail(connection, verb(connection, row, core.clock.wall()), who)

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


def _refuse_wanted(connection: Connection, row: FederationRow) -> None:
    """Refuse to forget a federation whose newest version is to become a training's adapter."""
    wholes = [] if row.task_seq is None else tasks.by_seqs(connection, [row.task_seq])
    for whole in wholes:
        if not TaskStatus(whole.status).final:
            raise ConflictError(
                f"The training {whole.id} takes its adapter from {row.id}, and is {whole.status}.",
                hint=f"Wait for it, or `tunefleet cancel {whole.id}`.",
            )


def make(
    connection: Connection, spec: FederationSpec, now: float, *, project: str, owner: str, task: TaskRow | None = None
) -> FederationRow:
    """Store a federation that is not started yet, and tell of it.

    Raises:
        QuotaError: If the project would keep more than it may.
    """
    id_ = new_id("fed")
    values: dict[str, Any] = {
        "id": id_, "project": project, "name": spec.name or id_, "owner": owner, "status": "queued",
        "spec": spec.model_dump_json(exclude_none=True), "contract": None,
        "callback_secret": spec.callback_secret or formats.new_secret(), "version": 0, "round": 0, "created_at": now,
        "task_seq": None if task is None else task.seq,
    }  # fmt: skip
    quotas.store_document(connection, project, len(values["spec"].encode()))
    row = federations.insert_one(connection, values)
    about: dict[str, Any] = {} if task is None else {"task": task.id}
    tell(connection, row, "federation.created", now, name=row.name, **about)
    return row
