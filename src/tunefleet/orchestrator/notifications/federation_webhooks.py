"""Webhooks of federation workers for new versions: signed, in order for each worker, retried until accepted.

Payloads are stored in the version's transaction, and sent by the delivery loop of `orchestrator.notifications`.
"""

from __future__ import annotations

from tunefleet.db import Connection, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow, MemberRow
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import WAITING, NoticeRow
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.notify import ToldVersion, WebhookPayload

EVENT = "published"


def lane(federation_id: str, worker: str) -> str:
    """Return the delivery lane of a worker's callbacks; an unreachable worker blocks no other lane."""
    return f"{federation_id}/{worker}"


def secret_of(connection: Connection, lane: str) -> str | None:
    """Return the signing secret of a lane; None if the lane belongs to no federation."""
    row = federations.by_id(connection, lane.partition("/")[0])
    return None if row is None else row.callback_secret


def are_wanted(connection: Connection, row: FederationRow) -> bool:
    """Whether any worker of a federation has a callback URL."""
    return any(each.callback_url is not None for each in federations.members(connection, row.seq))


def announce(
    connection: Connection, row: FederationRow, version: ToldVersion, now: float, *, base_url: str | None
) -> int:
    """Store the callbacks for a version; the event of its publication must be the newest one."""
    subscribers = [each for each in federations.members(connection, row.seq) if each.callback_url is not None]
    if subscribers:
        (event_id,) = notifications.last_event_ids(connection, 1)
        new = [_notice(row, each, version, event_id, now, base_url) for each in subscribers]
        notifications.insert_all(connection, new)
        wake(connection, TOPIC)
    return len(subscribers)


def _notice(
    row: FederationRow, member: MemberRow, version: ToldVersion, event_id: int, now: float, base_url: str | None
) -> NoticeRow:
    id_ = new_id("ntf")
    path = f"/api/v1/federations/{row.id}/versions/{version.version}"
    payload = WebhookPayload(
        id=id_,
        event=EVENT,
        at=to_datetime(now),
        title=f"{row.name}: version {version.version}",
        text=f"Federation {row.name} has published version {version.version} of its adapter.",
        federation=version.model_copy(update={"worker": member.worker}),
        url=None if base_url is None else f"{base_url.rstrip('/')}{path}",
        command=f"tunefleet federation versions {row.id}",
    )
    assert member.callback_url is not None, "members without a callback URL have no notice"
    return NoticeRow(
        id_, row.project, row.owner, lane(row.id, member.worker), "webhook", member.callback_url, EVENT, event_id,
        None, payload.model_dump_json(), WAITING, 0, 0.0, now,
    )  # fmt: skip
