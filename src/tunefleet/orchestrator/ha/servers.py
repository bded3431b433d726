"""The servers on this server's database, as seen by this server."""

from __future__ import annotations

from tunefleet.db import Connection
from tunefleet.db.fleet import servers
from tunefleet.db.fleet.servers import LeaderRow, ServerRow
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.server_info import PeersView, PeerView


async def show(core: ServerContext, actor: Actor) -> PeersView:
    """Return the servers on the database; none on SQLite, which only one server can use."""
    may_read(actor)
    leader, rows = await core.read(_look)
    now = core.clock.monotonic()
    return PeersView(
        shared=core.leading.shared,
        epoch=leader.epoch,
        servers=tuple(_view(core, row, leader, now) for row in rows) if core.leading.shared else (),
    )


def _look(connection: Connection) -> tuple[LeaderRow, list[ServerRow]]:
    return servers.look(connection), servers.all_rows(connection)


def _view(core: ServerContext, row: ServerRow, leader: LeaderRow, now: float) -> PeerView:
    renewals, at = core.leading.seen.get(row.id, (row.renewals, now))
    return PeerView(
        id=row.id,
        host=row.host,
        url=row.url,
        version=row.version,
        leads=row.id == leader.server_id,
        this=row.id == core.leading.server_id,
        started_at=to_datetime(row.started_at),
        silent_s=0.0 if renewals != row.renewals else round(now - at, 1),
    )
