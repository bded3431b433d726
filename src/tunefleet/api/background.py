"""What lives as long as the server: the background loops, and the word that it is about to stop.

Knows how to run a loop and end it; what a loop does is a service's verb.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tunefleet.errors import NotLeadingError, TunefleetError, UnreachableError
from tunefleet.orchestrator.campaigns.engine_repository import TOPIC as CAMPAIGNS
from tunefleet.orchestrator.campaigns.engine_repository import Book
from tunefleet.orchestrator.campaigns.tracking_outbox import Outbox
from tunefleet.orchestrator.clusters.reconciler import ClusterKeeper
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import task_settlement
from tunefleet.orchestrator.federation.round_scheduler import RoundKeeper
from tunefleet.orchestrator.federation.status import SETTLING
from tunefleet.orchestrator.ha.leader_election import Election, keep_place
from tunefleet.orchestrator.ha.leadership import fenced
from tunefleet.orchestrator.notifications.delivery import Courier
from tunefleet.orchestrator.scheduling import autoscaling, reaper, scheduler
from tunefleet.orchestrator.storage import artifacts, capacity, verification
from tunefleet.orchestrator.workflows import shard_merge
from tunefleet.orchestrator.workflows.fan_out import JOINING
from tunefleet.transport.redis.connection import address_of

if TYPE_CHECKING:
    from tunefleet.api.leader_mirror import Mirror
    from tunefleet.campaign.reconciler import CampaignKeeper
    from tunefleet.transport.redis.server import RedisHub

log = logging.getLogger(__name__)

# Placement runs when something changed; this often even if nothing said so.
PLACEMENT_SWEEP_S: Final = 10.0
SWEEP_S: Final = 1.0
GARBAGE_S: Final = 900.0
ROOM_S: Final = 30.0
FOLLOW_S: Final = 0.1
"""How soon a server that was elected begins to work, and one that was not ends."""
_MAX_BACKOFF_S: Final = 30.0
_GIVE_BACK_S: Final = 3.0


@dataclass(slots=True)
class Lifetime:
    """Background loops of one server, and the word that it is about to stop.

    Long polls and streams wait on the core's signals, so that `stop` releases them at once; uvicorn would wait for
    them before it tells the app anything.
    """

    core: Core
    url: str | None = None
    """Under which this process reaches itself; without one it runs no campaigns."""
    peer_url: str | None = None
    """Under which other servers on the same database reach it."""
    trust: ssl.SSLContext | None = None
    """Of its own certificate, if it serves HTTPS: that may be for another name than the one by which it gets there."""
    give_up: Callable[[], None] = lambda: None
    """Ends the server by itself; `refused` says why."""
    refused: TunefleetError | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _own: list[asyncio.Task[None]] = field(default_factory=list)
    _election: Election | None = None
    _mirror: Mirror | None = None
    _epoch: int | None = None
    _hub: RedisHub | None = None
    _courier: Courier | None = None
    _rounds: RoundKeeper | None = None
    _nodes: ClusterKeeper | None = None
    _campaigns: CampaignKeeper | None = None

    def stop(self) -> None:
        """Release every long poll and stream, for good."""
        self.core.signals.close()

    async def leave(self) -> None:
        """Release long polls and streams, and let another server lead."""
        self.stop()
        await self._end(self._own)
        await self._rest()
        if self._mirror is not None:
            await self._mirror.close()
        if self._election is not None:
            election, self._election = self._election, None
            try:
                await asyncio.wait_for(election.close(), _GIVE_BACK_S)
            except (TunefleetError, TimeoutError) as error:
                log.warning("The lead could not be given back; another server takes it in a moment: %s", error)

    def start(self) -> None:
        """Start the background loops; of several servers on one database only the leader has them."""
        if not self.core.db.shared:
            self._work()
            return
        self._election = Election(self.core, own_id(self.core.settings.data_dir), self.peer_url)
        from tunefleet.api.leader_mirror import Mirror  # noqa: PLC0415 -- most servers are alone

        self._mirror = Mirror(self.core)
        self._own = [
            asyncio.create_task(self._loop("mirror", self._mirror.run_once), name="mirror"),
            asyncio.create_task(keep_place(self._election, self.core, self._give_up), name="election"),
            asyncio.create_task(self._loop("leading", self._follow, every_s=FOLLOW_S), name="leading"),
            asyncio.create_task(self._loop("keys", lambda: reaper.flush_keys(self.core), every_s=reaper.FLUSH_S)),
            asyncio.create_task(self._loop("room", self._count_room, every_s=ROOM_S)),
        ]

    def _give_up(self, error: TunefleetError) -> None:
        log.error("%s", error)
        self.refused = error
        self.give_up()

    async def _count_room(self) -> None:
        """Other servers store and delete files, too."""
        await self.core.read(lambda connection: capacity.count(connection, self.core.blobs))

    async def _follow(self) -> None:
        """Have the loops of a leader exactly while this server is one."""
        leading = self.core.leading
        epoch = leading.epoch if leading.leads(self.core.clock.monotonic()) else None
        if epoch != self._epoch:
            if self._epoch is not None:
                await self._rest()
            self._epoch = epoch
            if epoch is not None:
                with fenced(epoch):
                    self._work()

    def _work(self) -> None:
        loops = {
            "placement": self._loop("placement", self._place),
            "elastic": self._loop("elastic", self._scale, every_s=autoscaling.GAP_S),
            "joining": self._loop("joining", self._join),
            "settling": self._loop("settling", self._settle),
            "sweep": self._loop("sweep", lambda: reaper.run_once(self.core), every_s=SWEEP_S),
            "scrub": self._loop("scrub", lambda: verification.run_for_a_while(self.core)),
            "garbage": self._loop("garbage", lambda: artifacts.collect_garbage(self.core), every_s=GARBAGE_S),
        }
        self._nodes = ClusterKeeper(self.core, self.url)
        loops["clusters"] = self._loop("clusters", self._nodes.run_for_a_while)
        self._courier = Courier(self.core)
        loops["notifications"] = self._loop("notifications", self._courier.run_once)
        self._rounds = RoundKeeper(self.core)
        loops["rounds"] = self._loop("rounds", self._rounds.run_once)
        if self.url is not None:
            loops["campaigns"] = self._loop("campaigns", self._run_campaigns)
        redis_address = address_of(self.core.settings)
        if redis_address is not None:
            from tunefleet.api import redis_gateway  # noqa: PLC0415 -- most servers need no Redis

            self._hub = redis_gateway.hub_of(self.core, redis_address, self.url)
            loops["redis"] = self._loop("redis", self._hub.serve)
        self._tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]

    async def close(self) -> None:
        """End the background loops."""
        await self.leave()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        left = set(tasks)
        tasks.clear()
        while left:
            # Again and again: a library may swallow a cancellation that comes as its call returns.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1.0)

    async def _rest(self) -> None:
        """End the loops that a leader has; they can be started anew."""
        await self._end(self._tasks)
        if self._campaigns is not None:
            await self._campaigns.close()
        if self._rounds is not None:
            await self._rounds.close()
        if self._courier is not None:
            await self._courier.close()
        if self._hub is not None:
            await self._hub.close()
        self._campaigns = self._rounds = self._courier = self._hub = None

    async def _run_campaigns(self) -> None:
        if self._campaigns is None:
            # Most servers have no campaign: what runs them is loaded when there is one.
            signals = self.core.signals
            seen = signals.version(CAMPAIGNS)
            book = Book(self.core)
            if not (await book.due() or await book.to_cancel() or await Outbox(self.core).waits()):
                await signals.wait(CAMPAIGNS, PLACEMENT_SWEEP_S, seen)
                return
            assert self.url is not None
            make = await asyncio.to_thread(_campaign_keeper)  # the import takes a while
            self._campaigns = make(self.core, self.url, self.trust)
        await self._campaigns.run_once()

    async def _scale(self) -> None:
        signals = self.core.signals
        seen = signals.version("placement")
        began = self.core.clock.monotonic()
        await autoscaling.run_once(self.core)
        await asyncio.sleep(autoscaling.rest_s(self.core.clock.monotonic() - began))
        await signals.wait("placement", autoscaling.pause_s(self.core), seen)

    async def _place(self) -> None:
        signals = self.core.signals
        # The version first: what changes during the pass starts the next one.
        seen = signals.version("placement")
        await scheduler.run_once(self.core)
        await asyncio.sleep(scheduler.pause_s(self.core))
        await signals.wait("placement", PLACEMENT_SWEEP_S, seen)

    async def _join(self) -> None:
        signals = self.core.signals
        seen = signals.version(JOINING)
        await shard_merge.run_once(self.core)
        await signals.wait(JOINING, shard_merge.pause_s(self.core), seen)

    async def _settle(self) -> None:
        signals = self.core.signals
        seen = signals.version(SETTLING)
        await task_settlement.run_once(self.core)
        await signals.wait(SETTLING, task_settlement.SWEEP_S, seen)

    async def _loop(self, name: str, step: Callable[[], Awaitable[object]], *, every_s: float = 0.0) -> None:
        failures = 0
        while not self.core.signals.closed:
            try:
                await step()
                failures = 0
            except (NotLeadingError, UnreachableError) as error:
                failures += 1
                log.log(logging.WARNING if failures == 1 else logging.DEBUG, "The %s loop waits: %s", name, error)
            except Exception:
                failures += 1
                log.exception("The %s loop failed (%d in a row).", name, failures)
            pause_s = min(0.5 * 2**failures, _MAX_BACKOFF_S) if failures else every_s
            await asyncio.sleep(pause_s)


def own_id(folder: Path) -> str:
    """Return a server's name among others on its database: it stays with the data folder."""
    path = folder / "server.id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        made = f"srv-{secrets.token_hex(6)}"
        path.write_text(made + "\n")
        return made


def _campaign_keeper() -> type[CampaignKeeper]:
    from tunefleet.campaign.reconciler import CampaignKeeper  # noqa: PLC0415

    return CampaignKeeper
