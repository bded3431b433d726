"""Lookup, spec, status changes and events of campaigns."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import ValidationError

from tunefleet.campaign.service.cycle_state import Unreadable
from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus, move_campaign, needs_you
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read, may_submit
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.documents.campaign_file import dump_campaign_spec, load_campaign_spec
from tunefleet.validation_errors import summary

# Published when a campaign may be due.
TOPIC: Final = "campaigns"
ACTIVE: Final = CampaignStatus.ACTIVE.value
_NUMBER: Final = re.compile(r"\b\d+(?:[.,]\d+)*")


def topic(campaign_id: str) -> str:
    """Return the topic of a campaign's changes, step progress and log lines."""
    return f"campaign:{campaign_id}"


def stored(spec: CampaignSpec) -> str:
    """Serialize a spec with only the fields that the author set, so that other defaults may change later."""
    return orjson.dumps(dump_campaign_spec(spec)).decode()


@lru_cache(maxsize=256)
def parsed(text: str) -> CampaignSpec:
    """Read a stored spec.

    Raises:
        Unreadable: If a spec stored by an earlier version is not valid in this one.
    """
    try:
        return load_campaign_spec(orjson.loads(text))
    except ValidationError as error:
        raise Unreadable(
            f"The campaign's stored spec, from an earlier version, is not valid: {summary(error, most=1)}.",
            hint="Fix the file and apply it again.",
        ) from error


def same_reason(one: str | None, other: str | None) -> bool:
    """Whether two wait reasons are the same apart from numbers, such as the seconds left."""
    return one is not None and other is not None and _NUMBER.sub("", one) == _NUMBER.sub("", other)


def readable(text: str) -> CampaignSpec | None:
    """Read a stored spec; None if it is not valid in this version."""
    try:
        return parsed(text)
    except Unreadable:
        return None


def find(connection: Connection, actor: Actor, reference: str) -> CampaignRow:
    """Return a campaign that the actor may see.

    Raises:
        ConflictError: If several users have a campaign of that name.
        ForbiddenError: If the actor may not read.
    """
    may_read(actor)
    row = campaigns.by_id(connection, reference)
    if row is not None and row.project == actor.project:
        return row
    found = campaigns.named(connection, actor.project, reference)
    own = [each for each in found if each.owner == actor.owner] or found
    if not own:
        raise NotFoundError(f"Campaign {reference} not found.", hint="`tunefleet campaign list` lists them.")
    if len(own) > 1:
        raise ConflictError(
            f"Several users have a campaign {reference}: {', '.join(each.owner for each in own)}.",
            hint=f"Use the id: {', '.join(each.id for each in own)}.",
        )
    return own[0]


def mine(connection: Connection, actor: Actor, reference: str) -> CampaignRow:
    """Return a campaign that the actor may change, locked until the transaction ends.

    Raises:
        ConflictError: If several users have a campaign of that name.
        ForbiddenError: If it belongs to another user.
    """
    may_submit(actor)
    row = find(connection, actor, reference)
    may_change(actor, row.owner, f"Campaign {row.name}")
    locked = campaigns.by_id(connection, row.id, lock=True)
    assert locked is not None, "campaigns are never removed"
    return locked


def move(
    connection: Connection,
    row: CampaignRow,
    target: CampaignStatus,
    now: float,
    *,
    reason: str | None,
    cause: str | None = None,
    **more: Any,
) -> CampaignRow:
    """Change the status of a campaign, and publish an event.

    Raises:
        IllegalTransition: If the lifecycle does not allow the change.
    """
    move_campaign(CampaignStatus(row.status), target)
    changes: dict[str, Any] = {"status": target.value, "reason": reason, "by_config": 0, "changed_at": now, **more}
    moved = campaigns.change(connection, row, changes)
    tell(connection, moved, f"campaign.{target.value}", now, reason=reason, cause=cause)
    return moved


def await_person(
    connection: Connection, row: CampaignRow, now: float, why: str, *, verb: str, cause: str | None = None
) -> CampaignRow:
    """Hold a campaign until a user acts; the reason starts with the command to run."""
    reason = why if why.startswith(NEEDS_YOU) else needs_you(row.name, verb, why)
    return move(connection, row, CampaignStatus.HELD, now, reason=reason, cause=cause)


def tell(connection: Connection, row: CampaignRow, kind: str, now: float, **data: Any) -> None:
    """Append an event of a campaign, and notify its subscribers.

    Args:
        kind: Event name, such as `campaign.promoted`.
    """
    about = {"campaign": row.id, "name": row.name, **{key: value for key, value in data.items() if value is not None}}
    events.append(connection, [Event(kind, now, data=about, project=row.project, campaign_seq=row.seq)])
    wake(connection, TOPIC, topic(row.id))
