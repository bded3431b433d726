"""Campaign operations for users: apply by name, show, pause, resume and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from tunefleet.campaign.service import cycle_rewind, views
from tunefleet.campaign.service.status import find, mine, move, readable, stored, tell
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import SubscriptionRow
from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, may_read, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.views import before_cursor, bounded_limit, split_page
from tunefleet.schemas.api import Page
from tunefleet.schemas.campaign import CampaignApplied, CampaignDetail, CampaignView
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.options.notify import format_of, is_address

NOT_ENABLED: Final = "Its configuration has enabled: false."
_INACTIVE: Final = frozenset({CampaignStatus.PAUSED.value, CampaignStatus.HELD.value, CampaignStatus.STOPPED.value})
_Change = Literal["created", "changed", "unchanged"]


async def apply(
    core: ServerContext, actor: Actor, specs: Mapping[str, CampaignSpec], *, start: bool = False
) -> tuple[CampaignApplied, ...]:
    """Create or change the actor's campaigns by name, all or none; campaigns that are not named stay unchanged.

    Changes take effect in the next cycle; budget limits immediately. A campaign that is not `enabled` is paused, and
    resumes when it is enabled again.

    Raises:
        InputError: If one names a notification channel that its owner does not have.
        ForbiddenError: If the actor may not create campaigns.
        QuotaError: If the project would exceed its storage quota.
    """
    may_submit(actor)

    def operation(connection: Connection) -> tuple[CampaignApplied, ...]:
        now = core.clock.wall()
        # Before any change: a missing channel would silently lose notifications.
        _check_channels(connection, actor, specs)
        return tuple(_apply(connection, actor, name, spec, now, start=start) for name, spec in specs.items())

    return await core.write(operation)


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    statuses: Sequence[str] | None = None,
    owner: str | None = None,
) -> Page[CampaignView]:
    """Return campaigns, newest first."""
    may_read(actor)
    start, count = before_cursor(cursor), bounded_limit(limit)

    def operation(connection: Connection) -> Page[CampaignView]:
        found = campaigns.page(
            connection, project=actor.project, limit=count + 1, before=start, statuses=statuses, owner=owner
        )
        rows, next_cursor = split_page(found, count)
        items = tuple(views.campaign_view(connection, row) for row in rows)
        return Page[CampaignView](items=items, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: ServerContext, actor: Actor, reference: str) -> CampaignDetail:
    """Return a campaign by its id or name.

    Raises:
        ConflictError: If several users have a campaign of that name.
        ForbiddenError: If the actor may not read.
    """
    return await core.read(lambda connection: views.campaign_detail(connection, find(connection, actor, reference)))


async def summary(core: ServerContext, actor: Actor, reference: str) -> CampaignView:
    """Return a campaign's list view; raises what `get` raises."""
    return await core.read(lambda connection: views.campaign_view(connection, find(connection, actor, reference)))


async def start(core: ServerContext, actor: Actor, reference: str) -> CampaignDetail:
    """Resume a campaign, whether paused, held or stopped; an active one stays unchanged.

    Raises:
        ForbiddenError: If it belongs to another user.
    """
    return await change(core, actor, reference, _start)


async def pause(core: ServerContext, actor: Actor, reference: str) -> CampaignDetail:
    """Start no further steps of a campaign; a task at a provider continues. A paused one stays unchanged.

    Raises:
        ForbiddenError: If it belongs to another user.
        IllegalTransition: If it is stopped.
    """
    return await change(core, actor, reference, partial(_pause, actor=actor))


async def resume(core: ServerContext, actor: Actor, reference: str) -> CampaignDetail:
    """Resume a paused campaign; an active one stays unchanged.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If it is held or stopped.
    """
    return await change(core, actor, reference, _resume)


async def stop(core: ServerContext, actor: Actor, reference: str) -> CampaignDetail:
    """Stop a campaign: abandon its open cycle and cancel that cycle's task. A stopped one stays unchanged.

    Raises:
        ForbiddenError: If it belongs to another user.
    """
    return await change(core, actor, reference, partial(_stop, actor=actor))


Operation = Callable[[Connection, CampaignRow, float], CampaignRow]


async def change(core: ServerContext, actor: Actor, reference: str, operation: Operation) -> CampaignDetail:
    """Apply an operation to a campaign that the actor may change; raises what `mine` raises."""

    def transaction(connection: Connection) -> CampaignDetail:
        row = operation(connection, mine(connection, actor, reference), core.clock.wall())
        return views.campaign_detail(connection, row)

    return await core.write(transaction)


def begin(connection: Connection, row: CampaignRow, now: float) -> CampaignRow:
    """Resume a campaign, whether paused, held or stopped, and reset its failure counts."""
    row = move(connection, row, CampaignStatus.ACTIVE, now, reason=None, failures=0)
    cycle_rewind.forget_failures(connection, row, now)
    return row


def _start(connection: Connection, row: CampaignRow, now: float) -> CampaignRow:
    return row if row.status == CampaignStatus.ACTIVE else begin(connection, row, now)


def _pause(connection: Connection, row: CampaignRow, now: float, *, actor: Actor) -> CampaignRow:
    if row.status == CampaignStatus.PAUSED:
        # An explicit pause outlasts a later `enabled: true` in the configuration.
        return campaigns.change(connection, row, {"by_config": 0})
    return move(connection, row, CampaignStatus.PAUSED, now, reason=f"{actor.owner} paused it.")


def _resume(connection: Connection, row: CampaignRow, now: float) -> CampaignRow:
    if row.status == CampaignStatus.ACTIVE:
        return row
    if row.status == CampaignStatus.PAUSED:
        return move(connection, row, CampaignStatus.ACTIVE, now, reason=None)
    command = "retry" if row.status == CampaignStatus.HELD else "start"
    reason = row.reason or ""
    raise ConflictError(
        f"Campaign {row.name} is {row.status}. {reason}".rstrip(),
        hint=None if reason.startswith(NEEDS_YOU) else f"Resume it with `tunefleet campaign {command} {row.name}`.",
    )


def _stop(connection: Connection, row: CampaignRow, now: float, *, actor: Actor) -> CampaignRow:
    if row.status == CampaignStatus.STOPPED:
        return row
    # Clearing the holder makes its pending calls fail with LeaseLost; the reconciler cancels the abandoned cycle's
    # task.
    released: dict[str, Any] = {"holder": None, "lease_until": 0.0, "next_at": 0.0}
    cycle_rewind.abandon(connection, row, now)
    return move(connection, row, CampaignStatus.STOPPED, now, reason=f"{actor.owner} stopped it.", **released)


def _apply(
    connection: Connection, actor: Actor, name: str, spec: CampaignSpec, now: float, *, start: bool
) -> CampaignApplied:
    own = [row for row in campaigns.named(connection, actor.project, name) if row.owner == actor.owner]
    change: _Change = "unchanged"
    if not own:
        change, row = "created", _create(connection, actor, name, spec, now)
    else:
        row = campaigns.by_id(connection, own[0].id, lock=True) or own[0]
        # Compares parsed specs too: an equivalent spec in another serialization is no change.
        if row.spec != stored(spec) and readable(row.spec) != spec:
            change = "changed"
            quotas.store_document(connection, row.project, len(stored(spec).encode()) - len(row.spec.encode()))
            row = campaigns.change(connection, row, {"spec": stored(spec), "changed_at": now})
            tell(connection, row, "campaign.changed", now)
        row = _as_configured(connection, row, spec, now, start_=start)
    _subscribe(connection, row, spec)
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
    if (start_ and row.status in _INACTIVE) or (row.status == CampaignStatus.PAUSED and row.by_config):
        return begin(connection, row, now)
    return row


def _check_channels(connection: Connection, actor: Actor, specs: Mapping[str, CampaignSpec]) -> None:
    missing = [
        f"{name}: {subscription.to}"
        for name, spec in specs.items()
        for subscription in spec.notify
        if not is_address(subscription.to)
        and notifications.by_name(connection, subscription.to, project=actor.project, owner=actor.owner) is None
    ]
    if missing:
        raise InputError(
            f"Unknown notification channels ({'; '.join(missing)}).", hint="`tunefleet notify ls` lists your channels."
        )


def _subscribe(connection: Connection, row: CampaignRow, spec: CampaignSpec) -> None:
    """Store a campaign's notification subscriptions from its spec."""
    # Replaced as a whole: entries that were removed from the spec must not stay.
    notifications.delete_of_tasks(connection, [row.id])
    subscriptions = []
    for number, subscription in enumerate(spec.notify):
        events = ",".join(dict.fromkeys(subscription.on))
        if is_address(subscription.to):
            subscriptions.append(
                SubscriptionRow(
                    row.id, number, None, subscription.format or format_of(subscription.to), subscription.to, events
                )
            )
            continue
        channel = notifications.by_name(connection, subscription.to, project=row.project, owner=row.owner)
        if channel is not None:
            subscriptions.append(SubscriptionRow(row.id, number, channel.id, channel.format, channel.target, events))
    notifications.add_wishes(connection, subscriptions)
