"""Campaigns as people handle them: make or change by name, show, pause, resume and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import WishRow
from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, may_read, may_submit
from tunefleet.orchestrator.campaigns import backwards, views
from tunefleet.orchestrator.campaigns.status import find, mine, move, readable, stored, tell
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.views import before, bounded, split
from tunefleet.schemas.api import Page
from tunefleet.schemas.campaign import CampaignApplied, CampaignDetail, CampaignView
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.options.notify import format_of, is_address

NOT_ENABLED: Final = "Its configuration says enabled: false."
_RESTING: Final = frozenset({CampaignStatus.PAUSED.value, CampaignStatus.HELD.value, CampaignStatus.STOPPED.value})
_Change = Literal["created", "changed", "unchanged"]


async def apply(
    core: Core, actor: Actor, specs: Mapping[str, CampaignSpec], *, start: bool = False
) -> tuple[CampaignApplied, ...]:
    """Make or change the actor's campaigns by name, all or none; those that are not named stay as they are.

    What is changed holds from the next cycle on; the limits of a budget at once. A campaign that is not `enabled` is
    paused, and goes on when it is enabled again.

    Raises:
        InputError: If one names a channel that its owner does not have.
        ForbiddenError: If the actor may not make rows.
        QuotaError: If the project would keep more than it may.
    """
    may_submit(actor)

    def operation(connection: Connection) -> tuple[CampaignApplied, ...]:
        now = core.clock.wall()
        _check_channels(connection, actor, specs)
        return tuple(_apply(connection, actor, name, spec, now, start=start) for name, spec in specs.items())

    return await core.write(operation)


async def list_(
    core: Core,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    statuses: Sequence[str] | None = None,
    owner: str | None = None,
) -> Page[CampaignView]:
    """Return campaigns, newest first."""
    may_read(actor)
    start, count = before(cursor), bounded(limit)

    def operation(connection: Connection) -> Page[CampaignView]:
        found = campaigns.page(
            connection, project=actor.project, limit=count + 1, before=start, statuses=statuses, owner=owner
        )
        rows, next_cursor = split(found, count)
        items = tuple(views.campaign_view(connection, row) for row in rows)
        return Page[CampaignView](items=items, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: Core, actor: Actor, reference: str) -> CampaignDetail:
    """Return a campaign by its id or name.

    Raises:
        ConflictError: If several people have one of that name.
        ForbiddenError: If the actor may not read.
    """
    return await core.read(lambda connection: views.campaign_detail(connection, find(connection, actor, reference)))


async def glance(core: Core, actor: Actor, reference: str) -> CampaignView:
    """Return a campaign as a list shows it; raises what `get` raises."""
    return await core.read(lambda connection: views.campaign_view(connection, find(connection, actor, reference)))


async def start(core: Core, actor: Actor, reference: str) -> CampaignDetail:
    """Let a campaign go on, whatever it rests for; one that is active stays so.

    Raises:
        ForbiddenError: If it belongs to somebody else.
    """
    return await change(core, actor, reference, _start)


async def pause(core: Core, actor: Actor, reference: str) -> CampaignDetail:
    """Begin no further step of a campaign; what a provider trains goes on there. One that is paused stays so.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        IllegalTransition: If it is stopped.
    """
    return await change(core, actor, reference, partial(_pause, actor=actor))


async def resume(core: Core, actor: Actor, reference: str) -> CampaignDetail:
    """Let a paused campaign go on; one that is active stays so.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        ConflictError: If it is held or stopped.
    """
    return await change(core, actor, reference, _resume)


async def stop(core: Core, actor: Actor, reference: str) -> CampaignDetail:
    """End a campaign: its open cycle is given up, and that cycle's task is cancelled. One that is stopped stays so.

    Raises:
        ForbiddenError: If it belongs to somebody else.
    """
    return await change(core, actor, reference, partial(_stop, actor=actor))


Verb = Callable[[Connection, CampaignRow, float], CampaignRow]


async def change(core: Core, actor: Actor, reference: str, verb: Verb) -> CampaignDetail:
    """Let a verb change a campaign that the actor may change, and show what came of it; raises what `mine` raises."""

    def operation(connection: Connection) -> CampaignDetail:
        row = verb(connection, mine(connection, actor, reference), core.clock.wall())
        return views.campaign_detail(connection, row)

    return await core.write(operation)


def begin(connection: Connection, row: CampaignRow, now: float) -> CampaignRow:
    """Let a campaign go on, whatever it rests for; its failures are forgotten."""
    row = move(connection, row, CampaignStatus.ACTIVE, now, reason=None, failures=0)
    backwards.forget_failures(connection, row, now)
    return row


def _start(connection: Connection, row: CampaignRow, now: float) -> CampaignRow:
    return row if row.status == CampaignStatus.ACTIVE else begin(connection, row, now)


def _pause(connection: Connection, row: CampaignRow, now: float, *, actor: Actor) -> CampaignRow:
    if row.status == CampaignStatus.PAUSED:
        # Whoever asks wants it to stay so, whatever its configuration says later.
        return campaigns.change(connection, row, {"by_config": 0})
    return move(connection, row, CampaignStatus.PAUSED, now, reason=f"{actor.owner} paused it.")


def _resume(connection: Connection, row: CampaignRow, now: float) -> CampaignRow:
    if row.status == CampaignStatus.ACTIVE:
        return row
    if row.status == CampaignStatus.PAUSED:
        return move(connection, row, CampaignStatus.ACTIVE, now, reason=None)
    verb = "retry" if row.status == CampaignStatus.HELD else "start"
    reason = row.reason or ""
    raise ConflictError(
        f"The campaign {row.name} is {row.status}. {reason}".rstrip(),
        hint=None if reason.startswith(NEEDS_YOU) else f"`tunefleet campaign {verb} {row.name}` lets it go on.",
    )


def _stop(connection: Connection, row: CampaignRow, now: float, *, actor: Actor) -> CampaignRow:
    if row.status == CampaignStatus.STOPPED:
        return row
    # Nobody holds it any more: what is on its way is refused, and cancelled by who looks after what was given up.
    free: dict[str, Any] = {"holder": None, "lease_until": 0.0, "next_at": 0.0}
    backwards.abandon(connection, row, now)
    return move(connection, row, CampaignStatus.STOPPED, now, reason=f"{actor.owner} stopped it.", **free)


def _apply(
    connection: Connection, actor: Actor, name: str, spec: CampaignSpec, now: float, *, start: bool
) -> CampaignApplied:
    own = [row for row in campaigns.named(connection, actor.project, name) if row.owner == actor.owner]
    change: _Change = "unchanged"
    if not own:
        change, row = "created", _create(connection, actor, name, spec, now)
    else:
        row = campaigns.by_id(connection, own[0].id, lock=True) or own[0]
        if row.spec != stored(spec) and readable(row.spec) != spec:
            change = "changed"
            quotas.store_document(connection, row.project, len(stored(spec).encode()) - len(row.spec.encode()))
            row = campaigns.change(connection, row, {"spec": stored(spec), "changed_at": now})
            tell(connection, row, "campaign.changed", now)
        row = _as_configured(connection, row, spec, now, start_=start)
    _wish(connection, row, spec)
    return CampaignApplied(id=row.id, name=name, change=change, status=CampaignStatus(row.status), reason=row.reason)


def _create(connection: Connection, actor: Actor, name: str, spec: CampaignSpec, now: float) -> CampaignRow:
    status = CampaignStatus.ACTIVE if spec.enabled else CampaignStatus.PAUSED
    values: dict[str, Any] = {
        "id": new_id("camp"), "project": actor.project, "name": name, "owner": actor.owner, "status": status.value,
        "reason": None if spec.enabled else NOT_ENABLED, "by_config": int(not spec.enabled), "spec": stored(spec),
        "cycles": 0, "next_at": 0.0, "failures": 0, "holder": None, "lease_until": 0.0, "created_at": now,
        "changed_at": now,
    }  # fmt: skip
    quotas.store_document(connection, actor.project, len(values["spec"].encode()))
    row = campaigns.insert_one(connection, values)
    tell(connection, row, "campaign.created", now)
    return row


def _as_configured(
    connection: Connection, row: CampaignRow, spec: CampaignSpec, now: float, *, start_: bool
) -> CampaignRow:
    if not spec.enabled:
        if row.status not in {CampaignStatus.ACTIVE, CampaignStatus.HELD}:
            return row
        row = move(connection, row, CampaignStatus.PAUSED, now, reason=NOT_ENABLED)
        return campaigns.change(connection, row, {"by_config": 1})
    if (start_ and row.status in _RESTING) or (row.status == CampaignStatus.PAUSED and row.by_config):
        return begin(connection, row, now)
    return row


def _check_channels(connection: Connection, actor: Actor, specs: Mapping[str, CampaignSpec]) -> None:
    missing = [
        f"{name}: {wish.to}"
        for name, spec in specs.items()
        for wish in spec.notify
        if not is_address(wish.to)
        and notifications.by_name(connection, wish.to, project=actor.project, owner=actor.owner) is None
    ]
    if missing:
        raise InputError(
            f"You have no such channels to notify ({'; '.join(missing)}).", hint="See `tunefleet notify ls`."
        )


def _wish(connection: Connection, row: CampaignRow, spec: CampaignSpec) -> None:
    """Store who is told of a campaign, as its document wants."""
    notifications.delete_of_tasks(connection, [row.id])
    wishes = []
    for number, wish in enumerate(spec.notify):
        events = ",".join(dict.fromkeys(wish.on))
        if is_address(wish.to):
            wishes.append(WishRow(row.id, number, None, wish.format or format_of(wish.to), wish.to, events))
            continue
        channel = notifications.by_name(connection, wish.to, project=row.project, owner=row.owner)
        if channel is not None:
            wishes.append(WishRow(row.id, number, channel.id, channel.format, channel.target, events))
    notifications.add_wishes(connection, wishes)
