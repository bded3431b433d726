"""What lives as long as the server: its background loops and its shutdown.

Runs a loop and ends it; what one iteration does is a service's business.
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

from tunefleet.campaign.service.engine_repository import TOPIC as CAMPAIGNS
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.campaign.service.tracking_outbox import TrackingOutbox
from tunefleet.errors import NotLeadingError, TunefleetError, UnreachableError
from tunefleet.orchestrator.clusters.reconciler import ClusterReconciler
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.round_scheduler import RoundScheduler
from tunefleet.orchestrator.federation.status import SETTLING
from tunefleet.orchestrator.ha.leader_election import Election, keep_place
from tunefleet.orchestrator.leadership import fenced
from tunefleet.orchestrator.notifications.delivery import DeliveryLoop
from tunefleet.orchestrator.scheduling import autoscaling, reaper, scheduler
from tunefleet.orchestrator.serving import endpoint_usage
from tunefleet.orchestrator.storage import artifacts, capacity, verification
from tunefleet.orchestrator.sweeps.controller import SweepController
from tunefleet.orchestrator.tasks import federation_settlement as task_settlement
from tunefleet.orchestrator.tasks.fan_out import SHARD_MERGE_TOPIC
from tunefleet.orchestrator.workflows import shard_merge
from tunefleet.transport.redis.address import address_of

if TYPE_CHECKING:
    from tunefleet.api.leader_mirror import Mirror
    from tunefleet.campaign.reconciler import CampaignReconciler
    from tunefleet.transport.redis.server import RedisHub

log = logging.getLogger(__name__)

# Placement runs when something changes, and at least this often in case a notification was lost.
PLACEMENT_SWEEP_S: Final = 10.0
SWEEP_S: Final = 1.0
GARBAGE_S: Final = 900.0
ROOM_S: Final = 30.0
FOLLOW_S: Final = 0.1
"""How soon an elected server starts its loops, and one that lost the lead stops them."""
_MAX_BACKOFF_S: Final = 30.0
_GIVE_BACK_S: Final = 3.0


@dataclass(slots=True)
class Lifetime:
    """Background loops and shutdown of one server.

    Long polls and streams wait on the core's signals, so that `stop` releases them immediately; uvicorn would wait for
    them before it runs the app's shutdown.
    """

    core: ServerContext
    url: str | None = None
    """URL under which this process reaches itself; without one it runs no campaigns."""
    peer_url: str | None = None
    """URL under which other servers on the same database reach this one."""
    trust: ssl.SSLContext | None = None
    """Trusts the server's own certificate, which may be issued for another name than the one in `url`."""
    give_up: Callable[[], None] = lambda: None
    """Shuts the server down; `refused` holds the reason."""
    refused: TunefleetError | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _own: list[asyncio.Task[None]] = field(default_factory=list)
    _election: Election | None = None
    _mirror: Mirror | None = None
    _epoch: int | None = None
    _hub: RedisHub | None = None
    _delivery_loop: DeliveryLoop | None = None
    _rounds: RoundScheduler | None = None
    _nodes: ClusterReconciler | None = None
    _campaigns: CampaignReconciler | None = None

    def stop(self) -> None:
        """Release every long poll and stream."""
        self.core.signals.close()

    async def leave(self) -> None:
        """Release long polls and streams, and hand over the lead."""
        self.stop()
        await self._end(self._own)
        await self._rest()
        if self._mirror is not None:
            await self._mirror.close()
        if self._election is not None:
            # Three seconds are enough for one statement; a database that is gone must not delay the shutdown.
            election, self._election = self._election, None
            try:
                await asyncio.wait_for(election.close(), _GIVE_BACK_S)
            except (TunefleetError, TimeoutError) as error:
                log.warning("Could not release the lead; another server takes over when the lease expires: %s", error)

    def start(self) -> None:
        """Start the background loops; of several servers on one database only the leader runs them."""
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
            # These run on every server, not only on the leader: each counts the use of the keys it has seen itself.
            asyncio.create_task(self._loop("keys", lambda: reaper.flush_keys(self.core), every_s=reaper.FLUSH_S)),
            asyncio.create_task(self._loop("room", self._count_room, every_s=ROOM_S)),
        ]

    def _give_up(self, error: TunefleetError) -> None:
        log.error("%s", error)
        self.refused = error
        self.give_up()

    async def _count_room(self) -> None:
        """Update the storage counters: other servers store and delete files, too."""
        await self.core.read(lambda connection: capacity.count(connection, self.core.blobs))

    async def _follow(self) -> None:
        """Run the leader's loops exactly while this server leads."""
        leading = self.core.leading
        epoch = leading.epoch if leading.leads(self.core.clock.monotonic()) else None
        if epoch != self._epoch:
            if self._epoch is not None:
                await self._rest()
            self._epoch = epoch
            if epoch is not None:
                # Tasks inherit the context: every write of these loops carries the epoch and fails once it is over.
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
            "usage": self._loop("usage", lambda: endpoint_usage.flush(self.core), every_s=endpoint_usage.FLUSH_S),
            "garbage": self._loop("garbage", lambda: artifacts.collect_garbage(self.core), every_s=GARBAGE_S),
        }
        self._nodes = ClusterReconciler(self.core, self.url)
        loops["clusters"] = self._loop("clusters", self._nodes.run_for_a_while)
        self._delivery_loop = DeliveryLoop(self.core)
        loops["notifications"] = self._loop("notifications", self._delivery_loop.run_once)
        self._rounds = RoundScheduler(self.core)
        loops["rounds"] = self._loop("rounds", self._rounds.run_once)
        loops["sweeps"] = self._loop("sweeps", SweepController(self.core).run_once)
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
            # Repeated: a library may swallow a cancellation that arrives just as its call returns.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1.0)

    async def _rest(self) -> None:
        """End the leader's loops; they can be started again."""
        await self._end(self._tasks)
        if self._campaigns is not None:
            await self._campaigns.close()
        if self._rounds is not None:
            await self._rounds.close()
        if self._delivery_loop is not None:
            await self._delivery_loop.close()
        if self._hub is not None:
            await self._hub.close()
        self._campaigns = self._rounds = self._delivery_loop = self._hub = None

    async def _run_campaigns(self) -> None:
        if self._campaigns is None:
            # Most servers have no campaign: load the code that runs them only when there is one.
            signals = self.core.signals
            seen = signals.version(CAMPAIGNS)
            repository = CampaignRepository(self.core)
            if not (await repository.due() or await repository.to_cancel() or await TrackingOutbox(self.core).waits()):
                await signals.wait(CAMPAIGNS, PLACEMENT_SWEEP_S, seen)
                return
            assert self.url is not None
            make = await asyncio.to_thread(_campaign_reconciler)  # the import takes a while
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
        # Read the version first, so that a change during this cycle starts the next one.
        seen = signals.version("placement")
        await scheduler.run_once(self.core)
        await asyncio.sleep(scheduler.pause_s(self.core))
        await signals.wait("placement", PLACEMENT_SWEEP_S, seen)

    async def _join(self) -> None:
        signals = self.core.signals
        seen = signals.version(SHARD_MERGE_TOPIC)
        await shard_merge.run_once(self.core)
        await signals.wait(SHARD_MERGE_TOPIC, shard_merge.pause_s(self.core), seen)

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
                # One warning per outage: the loop retries every few seconds until the database or the leader is back.
                log.log(logging.WARNING if failures == 1 else logging.DEBUG, "The %s loop is waiting: %s", name, error)
            except Exception:
                failures += 1
                log.exception("The %s loop failed (%d in a row).", name, failures)
            pause_s = min(0.5 * 2**failures, _MAX_BACKOFF_S) if failures else every_s
            await asyncio.sleep(pause_s)


def own_id(folder: Path) -> str:
    """Return the server's id among the servers of its database; it is stored in the data folder."""
    path = folder / "server.id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        made = f"srv-{secrets.token_hex(6)}"
        path.write_text(made + "\n")
        return made


def _campaign_reconciler() -> type[CampaignReconciler]:
    from tunefleet.campaign.reconciler import CampaignReconciler  # noqa: PLC0415

    return CampaignReconciler
