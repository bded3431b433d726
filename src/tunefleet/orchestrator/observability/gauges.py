"""Gauges that are queried on a scrape: queued and running tasks, workers, devices and storage.

The query runs in a reader thread, through indexes, and is cached for some seconds, so that many scrapers cost as much
as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tunefleet.db import Connection
from tunefleet.db.engine import statistics
from tunefleet.db.fleet import worker_rows as workers
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.counters import OTHER, Bounded
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.placement import Requirement, WorkerState, explain
from tunefleet.schemas.worker_link import GpuLoad

# How long a query result is cached.
FRESH_S: Final = 5.0
# The most frequent needs are reported individually, the others together.
MOST_NEEDS: Final = 40
# Maximum number of (need, worker) pairs that are matched; the rest is reported with served="unknown".
_MOST_MATCHES: Final = 20_000
_GIB: Final = 1 << 30
_MOST_TAGS: Final = 80
# Number of workers whose GPUs are also reported per worker; in a larger fleet, the others only per model.
MOST_WORKERS: Final = 200


@dataclass(slots=True)
class _Device:
    """Devices of one model, summed up."""

    count: int = 0
    busy: list[float] = field(default_factory=list)
    total_bytes: int = 0
    free_bytes: int = 0
    power_w: float = 0.0

    def add(self, gpu: Mapping[str, Any], now: GpuLoad | None) -> None:
        """Add a GPU with its worker's last report."""
        self.count += 1
        self.total_bytes += gpu.get("memory_total_bytes") or 0
        if now is None:
            self.free_bytes += gpu.get("memory_free_bytes") or 0
            return
        self.free_bytes += now.memory_free_bytes or 0
        self.power_w += now.power_w or 0.0
        if now.utilisation_percent is not None:
            self.busy.append(now.utilisation_percent / 100)


@dataclass(slots=True)
class _QueryResult:
    tasks: Counter[tuple[str, str]] = field(default_factory=Counter)
    demand: Counter[tuple[str, ...]] = field(default_factory=Counter)
    leases: Counter[str] = field(default_factory=Counter)
    workers: dict[str, int] = field(default_factory=dict)
    devices: dict[str, _Device] = field(default_factory=dict)
    of_workers: dict[tuple[str, str], _Device] = field(default_factory=dict)
    storage: tuple[int, int] | None = None
    oldest_s: float = 0.0
    answering: int = 0


class Gauges(Collector):
    """Collector of the cached query result; `refresh` renews it when it has expired."""

    def __init__(self, kind: Bounded) -> None:
        self._kind = kind
        self._model = Bounded()
        # Separate, so that names requested by tasks do not use up the limit for names of devices.
        self._wanted = Bounded()
        self._result = _QueryResult()
        self._at: float | None = None
        self._reports = True
        self._resulting = asyncio.Lock()

    async def refresh(self, core: ServerContext) -> None:
        """Query the database, unless the cached result is fresh."""
        async with self._resulting:
            now = core.clock.monotonic()
            if self._at is not None and now - self._at < FRESH_S:
                return
            snapshot, answering = cluster_state.fleet_snapshot(core), _answering(core)
            # Shared state is reported by the leader only, so that a sum over servers counts it once.
            self._reports = not core.db.shared or core.leading.leads(now)
            if not self._reports:
                return
            look = await core.read(lambda connection: self._read(connection, snapshot, answering))
            if core.blobs.limit_bytes is not None:
                look.storage = core.blobs.used_bytes, core.blobs.limit_bytes
            self._result = look
            self._at = core.clock.monotonic()

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the last query; none if another server leads."""
        if not self._reports:
            return
        look = self._result
        depth = _gauge("tunefleet_tasks", "Tasks that have not ended, by status and kind.", ["status", "kind"])
        for (status, kind), count in sorted(look.tasks.items()):
            depth.add_metric([status, kind], count)
        names = ["kind", "gpu", "gpus", "vram_gib", "tags", "served"]
        demand = _gauge(
            "tunefleet_demand_tasks",
            "Queued tasks, by requirements; served=no means that no registered worker can run them.",
            names,
        )
        for labels, count in sorted(look.demand.items()):
            demand.add_metric(labels, count)
        leases = _gauge("tunefleet_leases", "Attempts offered to or accepted by workers.", ["state"])
        for state in ("offered", "accepted"):
            leases.add_metric([state], look.leases[state])
        present = _gauge("tunefleet_workers", "Registered workers, by state.", ["state"])
        for state in ("online", "lost", "offline"):
            present.add_metric([state], look.workers.get(state, 0))
        yield from (depth, demand, leases, present)
        yield GaugeMetricFamily(
            "tunefleet_workers_answering", "Workers that recently contacted this process.", look.answering
        )
        yield GaugeMetricFamily(
            "tunefleet_queue_oldest_seconds", "Waiting time of the oldest queued task.", look.oldest_s
        )
        yield from self._of_devices(look)
        yield from self._of_workers(look)
        yield from self._of_storage(look)

    def _of_devices(self, look: _QueryResult) -> Iterator[Metric]:
        by_model = ["model"]
        count = _gauge("tunefleet_gpus", "GPUs of connected workers, by model.", by_model)
        busy = _gauge(
            "tunefleet_gpu_utilisation_ratio", "Mean utilization of the GPUs that report it, 0 to 1.", by_model
        )
        total = _gauge("tunefleet_gpu_memory_total_bytes", "Total memory of the GPUs of connected workers.", by_model)
        free = _gauge("tunefleet_gpu_memory_free_bytes", "Free memory of these GPUs, as last reported.", by_model)
        power = _gauge("tunefleet_gpu_power_watts", "Total power draw of these GPUs.", by_model)
        for model, device in sorted(look.devices.items()):
            count.add_metric([model], device.count)
            total.add_metric([model], device.total_bytes)
            free.add_metric([model], device.free_bytes)
            power.add_metric([model], device.power_w)
            if device.busy:
                busy.add_metric([model], sum(device.busy) / len(device.busy))
        yield from (count, busy, total, free, power)

    def _of_workers(self, look: _QueryResult) -> Iterator[Metric]:
        names = ["worker", "model"]
        busy = _gauge(
            "tunefleet_worker_gpu_utilisation_ratio",
            f"Mean utilization of a worker's GPUs, 0 to 1, for up to {MOST_WORKERS} workers.",
            names,
        )
        free = _gauge(
            "tunefleet_worker_gpu_memory_free_bytes",
            f"Free memory of a worker's GPUs, for up to {MOST_WORKERS} workers.",
            names,
        )
        for labels, device in sorted(look.of_workers.items()):
            free.add_metric(labels, device.free_bytes)
            if device.busy:
                busy.add_metric(labels, sum(device.busy) / len(device.busy))
        yield from (busy, free)

    def _of_storage(self, look: _QueryResult) -> Iterator[Metric]:
        where = "if TUNEFLEET_STORAGE_LIMIT_BYTES is set."
        used = _gauge("tunefleet_storage_used_bytes", f"Total size of the server's files, {where}", [])
        limit = _gauge("tunefleet_storage_limit_bytes", f"Limit on that size, {where}", [])
        for family, size_bytes in zip((used, limit), look.storage or (), strict=False):
            family.add_metric([], size_bytes)
        yield from (used, limit)

    def _read(self, connection: Connection, snapshot: FleetSnapshot, answering: frozenset[str]) -> _QueryResult:
        look = _QueryResult(workers=statistics.workers_by_status(connection), answering=len(answering))
        for status, kind, count in statistics.set_aside(connection):
            look.tasks[status, self._kind(kind)] += count
        for state, kind, count in statistics.held(connection):
            look.leases[state] += count
            look.tasks["dispatched" if state == "offered" else "running", self._kind(kind)] += count
        waiting = statistics.queued_by_need(connection)
        needs = cluster_state.needs(connection, [key for key, _ in waiting])
        for key, count in waiting:
            look.tasks["queued", self._kind(needs[key].kind)] += count
        if waiting:
            fleet = cluster_state.states(connection, snapshot)
            look.demand = self._demand([(needs[key], count) for key, count in waiting], fleet)
            oldest = statistics.oldest_queued(connection, [key for key, _ in waiting[:MOST_NEEDS]])
            look.oldest_s = 0.0 if oldest is None else max(0.0, snapshot.now - oldest)
        self._devices(connection, snapshot, answering, look)
        return look

    def _demand(
        self, waiting: Sequence[tuple[Requirement, int]], fleet: Sequence[WorkerState]
    ) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        listed = min(MOST_NEEDS, max(1, _MOST_MATCHES // max(1, len(fleet))))
        for need, count in waiting[:listed]:
            why = explain(need, fleet)
            served = "no" if why is not None and why.startswith("unschedulable") else "yes"
            found[*self._labels(need), served] += count
        for need, count in waiting[listed:]:
            found[self._kind(need.kind), OTHER, OTHER, OTHER, OTHER, "unknown"] += count
        return found

    def _labels(self, need: Requirement) -> tuple[str, ...]:
        wanted = need.gpu_type or "any"
        gpu = self._wanted(wanted) if need.gpu_count and not need.gpu_optional else "none"
        vram_gib = f"{need.gpu_memory_bytes / _GIB:g}" if need.gpu_memory_bytes else "0"
        tags = ",".join(sorted(need.tags))[:_MOST_TAGS]
        return self._kind(need.kind), gpu, str(need.gpu_count), vram_gib, tags

    def _devices(
        self, connection: Connection, snapshot: FleetSnapshot, answering: frozenset[str], look: _QueryResult
    ) -> None:
        for worker_id, _, _, text, _ in workers.with_capabilities(connection):
            if worker_id not in answering:
                continue
            load = snapshot.loads.get(worker_id)
            now = {each.uuid: each for each in load.gpus} if load is not None else {}
            for gpu in orjson.loads(text).get("gpus") or ():
                model = self._model(gpu["name"])
                look.devices.setdefault(model, _Device()).add(gpu, now.get(gpu["uuid"]))
                if (worker_id, model) in look.of_workers or len(look.of_workers) < MOST_WORKERS:
                    look.of_workers.setdefault((worker_id, model), _Device()).add(gpu, now.get(gpu["uuid"]))


def _answering(core: ServerContext) -> frozenset[str]:
    patience_s = core.settings.lost_after_s / 2
    heard = core.state(Fleet).presences.items()
    return frozenset(id_ for id_, each in heard if not each.lost and core.state(Fleet).silence_s(id_) < patience_s)


def _gauge(name: str, help_: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_, labels=labels)


async def written(core: ServerContext, accept: str) -> tuple[bytes, str]:
    """Return the current metrics and their content type.

    Raises:
        NotFoundError: If metrics are disabled.
    """
    if core.meters is None:
        raise NotFoundError(
            "Metrics are disabled on this server.",
            hint="Its operator has set TUNEFLEET_METRICS=off; unset the variable.",
        )
    await core.state(Gauges).refresh(core)
    encode, kind = choose_encoder(accept)
    # In a thread: encoding a thousand series takes some milliseconds of pure Python.
    return await asyncio.to_thread(encode, core.meters.registry), kind
