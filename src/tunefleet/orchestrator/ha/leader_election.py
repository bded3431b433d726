"""Which of several servers on one database leads: election, renewal, and the fence around what a leader writes.

A leader renews its row every second. Whoever sees no renewal for a while on its *own* monotonic clock takes over, with
the next epoch; a leader that could not renew stops before that. Clocks need not agree, and if two ever take themselves
for the leader, the fence lets one of them write (decision 031). A server that has its database to itself leads always.
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
from tunefleet.db.fleet import servers
from tunefleet.db.fleet.servers import LeaderRow, ServerRow
from tunefleet.errors import StoreError, TunefleetError
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.workers.presence import Fleet

log = logging.getLogger(__name__)

RENEW_S: Final = 1.0
# A leader leads for so long after its last renewal began.
LEASE_S: Final = 2.5
# A follower waits for so long for the next renewal; longer than the lease, whenever either of them looks.
PATIENCE_S: Final = 3.0
LOOK_S: Final = 0.5
# After so long without a look (the process or the database stood still) patience begins anew.
_BLIND_S: Final = 2.0
_PRESENT_S: Final = 2.0
_FORGET_S: Final = 3600.0
# Notified once this server knows of another leader.
SEEN: Final = "leader:seen"


class TwinError(StoreError):
    """Another server on the database has this one's name, and was there first."""


class Election:
    """One server's part in who leads.

    Args:
        url: Under which other servers reach it; null if that is not known.
    """

    def __init__(self, core: Core, server_id: str, url: str | None) -> None:
        self._core = core
        self._clock: Callable[[], float] = core.clock.monotonic
        now = core.clock.wall()
        self._me = ServerRow(
            server_id, secrets.token_hex(8), socket.gethostname(), url, tunefleet.__version__, now, renewals=0
        )
        self._since = self._looked_at = self._clock()
        self._present_at: float | None = None
        self._first = True
        self._replaced: str | None = None
        core.leading.shared, core.leading.server_id = True, server_id

    async def run_once(self) -> None:
        """Renew or look, once; call it again and again."""
        if self._core.leading.epoch is not None:
            await self._renew()
        else:
            await self._watch()
        await self._be_present()

    @property
    def pause_s(self) -> float:
        """In how long to look again."""
        return LOOK_S if self._core.leading.epoch is None else RENEW_S

    async def close(self) -> None:
        """Give back what this server has, so that another one leads at once."""
        epoch = self._core.leading.epoch
        if epoch is not None:
            self.step_down("it stops")
            await self._core.write(partial(servers.give_back, epoch=epoch))
        await self._core.write(partial(servers.leave, processes=[self._me.process]))

    def step_down(self, why: str) -> None:
        """Lead no more: what waits here for the leader's word is let go."""
        core = self._core
        log.warning("This server leads no more: %s (epoch %s).", why, core.leading.epoch)
        core.leading.epoch = None
        self._since = self._clock()
        core.fleet, core.joins = Fleet(), {}
        core.signals.notify_all()

    async def _renew(self) -> None:
        leading, began = self._core.leading, self._clock()
        if began >= leading.until:
            self.step_down("it could not say in time that it is alive")
            return
        assert leading.epoch is not None
        mine = await asyncio.wrap_future(self._core.db.pulse(partial(servers.renew, epoch=leading.epoch)))
        if not mine:
            self.step_down("another one has taken over")
        elif self._clock() >= leading.until:
            self.step_down("it could not say in time that it is alive")
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
        # The folder's lock says that the process of before is gone: nobody has to wait for it.
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
        log.info("This server leads now, in epoch %d.", taken.epoch)
        core.leading.row, core.leading.epoch, core.leading.until = taken, taken.epoch, began + LEASE_S
        # Silence is measured anew, by who watches now.
        core.fleet = Fleet()
        core.signals.notify_all()

    async def _be_present(self) -> None:
        """Say that this server is there, and look who else is."""
        now, seen = self._clock(), self._core.leading.seen
        if self._present_at is not None and now - self._present_at < _PRESENT_S:
            return
        self._present_at = now
        replaced = await asyncio.wrap_future(self._core.db.pulse(partial(servers.be_here, row=self._me)))
        if replaced is not None and replaced == self._replaced:
            # It was there before this one, and has come back: it lives.
            raise TwinError(
                f"Another server is called {self._me.id}, too: one of the two data folders is a copy.",
                hint="Remove server.id from the folder of this one, and start it again.",
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


async def keep_place(election: Election, core: Core, give_up: Callable[[TwinError], None]) -> None:
    """Take part in the election until the server stops; a database that is away is waited for."""
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
            log.log(logging.DEBUG if failed else logging.WARNING, "Who leads is not known: %s", error)
            failed = True
        await core.signals.wait(servers.TOPIC, election.pause_s, topic)
