"""Many simulated workers in one event loop, and their shared records."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psutil

from tunefleet.errors import MachineError, TunefleetError
from tunefleet.simulation.held_attempt import Trace
from tunefleet.simulation.load_report import CrowdEnd, CrowdTick
from tunefleet.simulation.plan import CrowdPlan
from tunefleet.simulation.simulated_worker import SimulatedWorker
from tunefleet.transport.base import AsyncWorkerLink, ThreadedLink
from tunefleet.transport.http import AsyncHttpLink, AsyncJournals, Traffic
from tunefleet.transport.redis.keys import Keys
from tunefleet.transport.redis.worker import RedisLink

# Workers that register or leave concurrently.
_CONCURRENT: Final = 50
_LAG_S: Final = 0.05
# Durations kept of each kind; more are sampled uniformly.
_KEPT: Final = 20_000


class Durations:
    """A uniform sample of durations (reservoir sampling)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.count = 0
        self.kept: list[float] = []

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self.count += 1
        if len(self.kept) < _KEPT:
            self.kept.append(seconds)
        elif (index := self._rng.randrange(self.count)) < _KEPT:
            self.kept[index] = seconds


class Crowd:
    """A share of a plan's workers, and their ledger."""

    def __init__(self, share: CrowdPlan) -> None:
        self._share = share
        self._traffic = Traffic()
        rng = random.Random(share.first)
        self._exchange_times, self._lags = Durations(rng), Durations(rng)
        self._exchanges = self._renewals = self._offers = self._faults = 0
        self._last_fault: str | None = None
        self._traces: list[Trace] = []
        self._foreign: list[str] = []
        self._fatal: TunefleetError | None = None
        self._workers: list[SimulatedWorker] = []
        self._journals: AsyncJournals | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._watch: asyncio.Task[None] | None = None
        self._started_at = 0.0
        self._process = psutil.Process()
        self._cpu_s = 0.0

    async def start(self) -> None:
        """Register all workers, `_CONCURRENT` at a time.

        Raises:
            TunefleetError: If the server rejects one of them.
        """
        share = self._share
        if share.connection.link == "redis":
            # The Redis transport is synchronous: each worker waits and sends in threads.
            self._threads = ThreadPoolExecutor(2 * share.count, thread_name_prefix="redis-link")
        if share.plan.metrics_per_s:
            self._journals = AsyncJournals(share.connection.url, self._traffic)
        self._workers = [self._worker(number) for number in range(share.first, share.first + share.count)]
        await _each(self._workers, SimulatedWorker.start)
        self._started_at, self._cpu_s = time.monotonic(), sum(self._process.cpu_times()[:2])
        self._watch = asyncio.create_task(self._watch_lag())

    async def stop(self) -> CrowdEnd:
        """Let all workers leave, and return the records."""
        if self._watch is not None:
            self._watch.cancel()
        ran_s = max(1e-9, time.monotonic() - self._started_at)
        cpu = (sum(self._process.cpu_times()[:2]) - self._cpu_s) / ran_s
        await _each(self._workers, SimulatedWorker.leave)
        if self._journals is not None:
            await self._journals.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        return CrowdEnd(
            traces=tuple(self._traces),
            exchanges=self._exchanges,
            renewals=self._renewals,
            spoken_s=tuple(self._exchange_times.kept),
            lags_s=tuple(self._lags.kept),
            cpu_share=cpu,
            rss_bytes=self._process.memory_info().rss,
            up_bytes=self._traffic.up_bytes,
            down_bytes=self._traffic.down_bytes,
            faults=self._faults,
            last_fault=self._last_fault,
            foreign=tuple(self._foreign),
        )

    @property
    def fatal(self) -> TunefleetError | None:
        """The error that stopped a worker, if any."""
        return self._fatal

    def tick(self) -> CrowdTick:
        """Return the progress."""
        ended = sum(trace.finished_at is not None for trace in self._traces)
        return CrowdTick(offers=self._offers, ended=ended, exchanges=self._exchanges, faults=self._faults)

    def exchanged(self, took_s: float, *, has_messages: bool, renewed: bool) -> None:
        """Count an exchange."""
        self._exchanges += 1
        self._renewals += renewed
        if has_messages:
            self._exchange_times.add(took_s)

    def offered(self) -> None:
        """Count an offer."""
        self._offers += 1

    def ended(self, trace: Trace) -> None:
        """Record an ended attempt."""
        self._traces.append(trace)

    def fault(self, error: TunefleetError) -> None:
        """Count an error that is retried."""
        self._faults += 1
        self._last_fault = str(error)

    def foreign(self, task_id: str) -> None:
        """Record a task of another run that was released."""
        self._foreign.append(task_id)

    def _worker(self, number: int) -> SimulatedWorker:
        ship = None if self._journals is None else self._journals.ship
        return SimulatedWorker(
            self._share.plan, number, self._link(), self, ship=ship, link_name=self._share.connection.link,
            on_fatal=self._note_fatal,
        )  # fmt: skip

    def _link(self) -> AsyncWorkerLink:
        connection = self._share.connection
        if self._threads is None:
            return AsyncHttpLink(connection.url, connection.key, traffic=self._traffic)
        if connection.redis_url is None:
            raise MachineError(
                "The Redis transport needs TUNEFLEET_REDIS_URL.", hint="Set TUNEFLEET_REDIS_URL, as for a worker."
            )
        keys = Keys(connection.topic, connection.redis_prefix)
        beat_s = self._share.plan.load_every_s
        link = RedisLink(connection.redis_url, keys, server_url=connection.url, heartbeat_interval_s=beat_s)
        return ThreadedLink(link, self._threads)

    def _note_fatal(self, error: TunefleetError) -> None:
        self._fatal = self._fatal or error

    async def _watch_lag(self) -> None:
        """Measure the lag of this event loop, which distorts all other measurements."""
        while True:
            due = time.monotonic() + _LAG_S
            await asyncio.sleep(_LAG_S)
            self._lags.add(max(0.0, time.monotonic() - due))


async def _each(workers: list[SimulatedWorker], act: Callable[[SimulatedWorker], Awaitable[None]]) -> None:
    semaphore = asyncio.Semaphore(_CONCURRENT)

    async def one(worker: SimulatedWorker) -> None:
        async with semaphore:
            await act(worker)

    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(one(worker))
