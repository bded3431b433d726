"""Tell workers of a new version where they want to be told: signed, in order for each, and again until it is taken.

What is said is stored with the version, and delivered by the courier of notifications under its rules.
"""

from __future__ import annotations

from tunefleet.db import Connection, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow, MemberRow
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import WAITING, NoticeRow
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.orchestrator.views import moment
from tunefleet.schemas.notify import Told, ToldVersion

EVENT = "published"


def lane(federation_id: str, worker: str) -> str:
    """Return under which name callbacks of a worker are kept: one that is away holds up no other."""
    return f"{federation_id}/{worker}"


def secret_of(connection: Connection, lane: str) -> str | None:
    """Return what signs the callbacks of a lane; null if it is none of a federation."""
    row = federations.by_id(connection, lane.partition("/")[0])
    return None if row is None else row.callback_secret


def are_wanted(connection: Connection, row: FederationRow) -> bool:
    """Whether any worker of a federation wants to be told of its versions."""
    return any(each.callback_url is not None for each in federations.members(connection, row.seq))


def announce(
    connection: Connection, row: FederationRow, version: ToldVersion, now: float, *, base_url: str | None
) -> int:
    """Store what is to be told of a version; the event of its publication is the newest one."""
    told = [each for each in federations.members(connection, row.seq) if each.callback_url is not None]
    if told:
        (event_id,) = notifications.last_event_ids(connection, 1)
        new = [_notice(row, each, version, event_id, now, base_url) for each in told]
        notifications.insert_all(connection, new)
        wake(connection, TOPIC)
    return len(told)


def _notice(
    row: FederationRow, member: MemberRow, version: ToldVersion, event_id: int, now: float, base_url: str | None
) -> NoticeRow:
    id_ = new_id("ntf")
    place = f"/api/v1/federations/{row.id}/versions/{version.version}"
    told = Told(
        id=id_,
        event=EVENT,
        at=moment(now),
        title=f"{row.name}: version {version.version}",
        text=f"The federation {row.name} has published version {version.version} of its adapter.",
        federation=version.model_copy(update={"worker": member.worker}),
        url=None if base_url is None else f"{base_url.rstrip('/')}{place}",
        command=f"tunefleet federation versions {row.id}",
    )
    assert member.callback_url is not None, "whom nobody tells has no notice"
    return NoticeRow(
        id_, row.project, row.owner, lane(row.id, member.worker), "webhook", member.callback_url, EVENT, event_id,
        None, told.model_dump_json(), WAITING, 0, 0.0, now,
    )  # fmt: skip
