"""Leader election among servers on one database, with fencing of the leader's writes; and the list of servers.

The leader renews its row every second. A follower that sees no renewal for a while on its *own* monotonic clock takes
over with the next epoch; a leader that cannot renew steps down before that. Clocks need not agree: if two servers ever
consider themselves the leader, fencing lets only one of them write (decision 031). A single server always leads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import tunefleet
from tunefleet.db import Connection
from tunefleet.db.fleet import servers
from tunefleet.db.fleet.servers import LeaderRow, ServerRow
from tunefleet.errors import StoreError, TunefleetError
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.cluster_state import MergeWaits
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.server_info import PeersView, PeerView

log = logging.getLogger(__name__)
RENEW_S: Final = 1.0
# How long a leader leads after the start of its last renewal.
LEASE_S: Final = 2.5
# How long a follower waits for the next renewal: longer than the lease, regardless of when either one polls.
PATIENCE_S: Final = 3.0
LOOK_S: Final = 0.5
# After a gap this long between polls (a suspended process or database) the waiting time starts again.
_BLIND_S: Final = 2.0
_HEARTBEAT_S: Final = 2.0
_FORGET_S: Final = 3600.0
# Published when this server has seen a change of leader.
SEEN: Final = "leader:seen"


class TwinError(StoreError):
    """Another server on the database has the same id and was there first."""


class Election:
    """One server's participation in the election.

    Args:
        url: URL at which other servers reach it; None if not known.
    """

    def __init__(self, core: ServerContext, server_id: str, url: str | None) -> None:
        self._core = core
        self._clock: Callable[[], float] = core.clock.monotonic
        now = core.clock.wall()
        self._me = ServerRow(
            server_id, secrets.token_hex(8), socket.gethostname(), url, tunefleet.__version__, now, renewals=0
        )
        self._since = self._looked_at = self._clock()
        self._heartbeat_at: float | None = None
        self._first = True
        self._replaced: str | None = None
        core.leading.shared, core.leading.server_id = True, server_id

    async def run_once(self) -> None:
        """Renew the lease or check the leader once; call it in a loop."""
        if self._core.leading.epoch is not None:
            await self._renew()
        else:
            await self._watch()
        await self._heartbeat()

    @property
    def pause_s(self) -> float:
        """Seconds until the next call of `run_once`."""
        return LOOK_S if self._core.leading.epoch is None else RENEW_S

    async def close(self) -> None:
        """Release leadership, so that another server can take over immediately."""
        epoch = self._core.leading.epoch
        if epoch is not None:
            self.step_down("shutting down")
            await self._core.write(partial(servers.give_back, epoch=epoch))
        await self._core.write(partial(servers.leave, processes=[self._me.process]))

    def step_down(self, why: str) -> None:
        """Stop leading, and release everything that waits for the leader here."""
        core = self._core
        log.warning("This server is no longer the leader: %s (epoch %s).", why, core.leading.epoch)
        core.leading.epoch = None
        self._since = self._clock()
        core.put_state(Fleet())
        core.put_state(MergeWaits())
        core.signals.notify_all()

    async def _renew(self) -> None:
        leading, began = self._core.leading, self._clock()
        if began >= leading.until:
            self.step_down("it could not renew its lease in time")
            return
        assert leading.epoch is not None
        mine = await asyncio.wrap_future(self._core.db.pulse(partial(servers.renew, epoch=leading.epoch)))
        if not mine:
            self.step_down("another server has taken over")
        elif self._clock() >= leading.until:
            self.step_down("it could not renew its lease in time")
        else:
            leading.until = began + LEASE_S

    async def _watch(self) -> None:
        leading = self._core.leading
        row = await self._core.read(servers.look)
        now = self._clock()
        if row != leading.row or now - self._looked_at > _BLIND_S:
            another = row.epoch != leading.row.epoch or row.server_id != leading.row.server_id
            leading.row, self._since = row, now
            if another:
                self._core.signals.notify(SEEN)
        self._looked_at = now
        first, self._first = self._first, False
        # The lock on the data folder proves that the previous process is gone, so its lease need not expire.
        mine = row.process == self._me.process or (first and row.server_id == self._me.id)
        if row.server_id is None or mine or now - self._since >= PATIENCE_S:
            await self._take(row)

    async def _take(self, seen: LeaderRow) -> None:
        core, me = self._core, self._me
        began = self._clock()
        new = LeaderRow(0, me.id, me.process, me.url, 0, core.clock.wall())
        taken = await core.write(partial(servers.take, seen=seen, new=new))
        if taken is None:
            self._since = self._clock()
            return
        log.info("This server is the leader now (epoch %d).", taken.epoch)
        core.leading.row, core.leading.epoch, core.leading.until = taken, taken.epoch, began + LEASE_S
        # Silence of workers is measured from now: this server has not seen their earlier polls.
        core.put_state(Fleet())
        core.signals.notify_all()

    async def _heartbeat(self) -> None:
        """Update this server's heartbeat, and read those of its peers."""
        now, seen = self._clock(), self._core.leading.seen
        if self._heartbeat_at is not None and now - self._heartbeat_at < _HEARTBEAT_S:
            return
        self._heartbeat_at = now
        replaced = await asyncio.wrap_future(self._core.db.pulse(partial(servers.be_here, row=self._me)))
        if replaced is not None and replaced == self._replaced:
            # The process that this one has replaced wrote again: it is alive.
            raise TwinError(
                f"Another server has the same id {self._me.id}: one of the two data folders is a copy.",
                hint="Remove server.id from this server's data folder and start it again.",
            )
        self._replaced = self._replaced or replaced or self._me.process
        rows = await self._core.read(servers.all_rows)
        for row in rows:
            if row.id not in seen or seen[row.id][0] != row.renewals:
                seen[row.id] = row.renewals, now
        gone = [row.process for row in rows if now - seen[row.id][1] > _FORGET_S]
        if gone and self._core.leading.leads(now):
            await self._core.write(partial(servers.leave, processes=gone))
        for id_ in seen.keys() - {row.id for row in rows}:
            del seen[id_]


async def keep_place(election: Election, core: ServerContext, give_up: Callable[[TwinError], None]) -> None:
    """Participate in the election until the server stops; retries while the database is unreachable."""
    failed = False
    while not core.signals.closed:
        topic = core.signals.version(servers.TOPIC)
        try:
            await election.run_once()
            failed = False
        except TwinError as error:
            give_up(error)
            return
        except TunefleetError as error:
            log.log(logging.DEBUG if failed else logging.WARNING, "The leader is unknown: %s", error)
            failed = True
        await core.signals.wait(servers.TOPIC, election.pause_s, topic)


async def show_servers(core: ServerContext, actor: Actor) -> PeersView:
    """Return the servers on the database; none on SQLite, which only one server can use."""
    may_read(actor)
    leader, rows = await core.read(_look)
    now = core.clock.monotonic()
    return PeersView(
        shared=core.leading.shared,
        epoch=leader.epoch,
        servers=tuple(_server_view(core, row, leader, now) for row in rows) if core.leading.shared else (),
    )


def _look(connection: Connection) -> tuple[LeaderRow, list[ServerRow]]:
    return servers.look(connection), servers.all_rows(connection)


def _server_view(core: ServerContext, row: ServerRow, leader: LeaderRow, now: float) -> PeerView:
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
