"""The Worker Guide's events and the hash `worker:{id}`, for monitoring of a worker's Redis.

Derived from the exchanges; nothing in Tunefleet depends on them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tunefleet.schemas.worker_link import Capabilities, ExchangeRequest, Finish, Load, Offer
from tunefleet.transport.redis.chunking import Entry, dumps, now_text

# `TASK_UPDATE` if the task is only paused; the last two names come from the guide's successor.
_ENDS: Final = {"completed": "TASK_SUCCEEDED", "failed": "TASK_FAILED", "cancelled": "TASK_CANCELLED"}


def hardware(has: Capabilities) -> dict[str, Any]:
    """Return a machine's hardware in the guide's `hardware_json` format."""
    gpus = [
        {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "memory_total_bytes": gpu.memory_total_bytes}
        for gpu in has.gpus
    ]
    network: dict[str, Any] = {"ip": has.address}
    if has.bandwidth_bytes_per_s is not None:
        network["bandwidth_bytes_per_sec"] = has.bandwidth_bytes_per_s
    return {
        "cpu": {"logical_cores": has.cpu_count, "model": has.cpu_model},
        "memory": {"total_bytes": has.memory_total_bytes},
        "gpu": {"driver_version": has.driver_version, "cuda_version": has.cuda_version, "gpus": gpus},
        "network": network,
    }


@dataclass(slots=True)
class _Run:
    kind: str
    dispatched_at: str | None
    task_id: str
    started_at: float | None = None


@dataclass(slots=True)
class GuideEvents:
    """Events and fields that accompany one message."""

    tasks: list[Entry] = field(default_factory=list)
    workers: list[Entry] = field(default_factory=list)
    fields: Entry = field(default_factory=dict)
    beats: bool = False


class GuideEventLog:
    """Events of one worker process; not thread-safe, call it under a lock."""

    def __init__(self, held: Iterable[Offer] = ()) -> None:
        self._runs: dict[str, _Run] = {}
        self._status = "STARTING"
        self._has: Capabilities | None = None
        self._born = time.time()
        self._joules: float | None = None
        self._power_sums: dict[str, list[float]] = {}
        self._samples = 0
        for offer in held:
            self.note(offer, None)
            self._runs[offer.token].started_at = self._born

    def note(self, offer: Offer, dispatched_at: str | None) -> None:
        """Store the task of a token, including those of merged tasks."""
        self._runs.setdefault(offer.token, _Run(offer.kind, dispatched_at, offer.task_id))
        for merged in offer.merged:
            self._runs.setdefault(merged.token, _Run(offer.kind, dispatched_at, merged.task_id))

    def registers(self, worker_id: str, has: Capabilities) -> GuideEvents:
        """Return the events of a registration."""
        self._has, self._status = has, "STARTING"
        if has.started_at is not None:
            self._born = has.started_at
        env = {"hostname": has.hostname, "platform": has.platform, "version": has.version, "python": sys.version}
        payload = {"env": env, "hardware": hardware(has), "cost_per_hour": has.cost_per_hour}
        event = self._event("REGISTER", worker_id, status="STARTING", tags=list(has.tags), payload=payload)
        fields = {
            "worker_id": worker_id,
            "status": "STARTING",
            "started_at": datetime.fromtimestamp(self._born, UTC).isoformat(),
            "pid": str(has.pid or ""),
            "env_json": dumps(env),
            "hardware_json": dumps(payload["hardware"]),
            "tags_json": dumps(list(has.tags)),
            "last_seen": now_text(),
            "cost_per_hour": str(has.cost_per_hour),
        }
        return GuideEvents(workers=[event], fields=fields, beats=True)

    def exchanges(self, request: ExchangeRequest) -> GuideEvents:
        """Return the events of an exchange, each only once."""
        guide_events = GuideEvents()
        for token in (*request.accepts, *request.holding, *(finish.token for finish in request.finishes)):
            run = self._runs.get(token)
            if run is not None and run.started_at is None:
                run.started_at = time.time()
                guide_events.tasks.append(self._task_event("TASK_STARTED", request.worker_id, run, status="RUNNING"))
        last = ""
        for finish in request.finishes:
            ended = self._runs.pop(finish.token, None)
            if ended is not None:
                guide_events.tasks.append(self._end(request.worker_id, ended, finish))
                last = ended.task_id
        self._add_status(guide_events, request.worker_id, last)
        if request.load is not None:
            guide_events.beats = True
            metrics = self._metrics(request.load)
            guide_events.workers.append(self._event("HEARTBEAT", request.worker_id, metrics=metrics))
            guide_events.fields["last_seen"] = now_text()
        return guide_events

    def leaves(self, worker_id: str) -> Entry:
        """Return the event of a clean shutdown."""
        power = self._power_summary()
        payload = {"cost_per_hour": self._cost, **self._spent(), "power_summary": power}
        return self._event("UNREGISTER", worker_id, payload=payload)

    def _add_status(self, guide_events: GuideEvents, worker_id: str, last: str) -> None:
        running = [run.task_id for run in self._runs.values() if run.started_at is not None]
        status = "RUNNING" if running else "IDLE"
        if last:
            guide_events.fields["extra_last_task"] = last
        if status == self._status:
            return
        self._status = status
        payload = {"task_id": running[-1]} if running else {"last_task": last}
        guide_events.workers.append(self._event("STATUS", worker_id, status=status, payload=payload))
        guide_events.fields |= {"status": status, "last_seen": now_text()}
        guide_events.fields["extra_task_id"] = running[-1] if running else ""

    def _end(self, worker_id: str, run: _Run, finish: Finish) -> Entry:
        kind = _ENDS.get(finish.outcome, "TASK_UPDATE")
        ended = time.time()
        more: dict[str, Any] = {
            "runtime_sec": round(ended - (run.started_at or ended), 3),
            "finished_at": datetime.fromtimestamp(ended, UTC).isoformat(),
        }
        status = {"TASK_SUCCEEDED": "DONE", "TASK_FAILED": "FAILED"}.get(kind, finish.outcome.upper())
        entry = self._task_event(kind, worker_id, run, status=status, **more)
        return {**entry, "error": finish.error} if finish.error else entry

    def _task_event(self, kind: str, worker_id: str, run: _Run, *, status: str, **more: Any) -> Entry:
        started = None if run.started_at is None else datetime.fromtimestamp(run.started_at, UTC).isoformat()
        payload = {"taskType": run.kind, "dispatched_at": run.dispatched_at, "started_at": started, **more}
        entry = {"type": kind, "ts": now_text(), "worker_id": worker_id, "task_id": run.task_id, "status": status}
        return {**entry, "payload": dumps(payload)}

    @staticmethod
    def _event(kind: str, worker_id: str, *, status: str | None = None, **more: Any) -> Entry:
        entry = {"type": kind, "ts": now_text(), "worker_id": worker_id}
        if status is not None:
            entry["status"] = status
        return {**entry, **{name: dumps(value) for name, value in more.items()}}

    @property
    def _cost(self) -> float:
        return self._has.cost_per_hour if self._has else 0.0

    def _spent(self) -> dict[str, float]:
        uptime_s = max(0.0, time.time() - self._born)
        return {"uptime_sec": round(uptime_s, 3), "accrued_cost_usd": round(uptime_s / 3600 * self._cost, 6)}

    def _metrics(self, load: Load) -> dict[str, Any]:
        watts = {gpu.uuid: gpu.power_w for gpu in load.gpus if gpu.power_w is not None}
        self._joules, self._samples = load.gpu_energy_j, self._samples + bool(watts)
        for uuid, power_w in watts.items():
            sum_and_count = self._power_sums.setdefault(uuid, [0.0, 0.0])
            sum_and_count[0] += power_w
            sum_and_count[1] += 1
        gpu_watts = {"total": sum(watts.values()) if watts else None, "per_gpu": watts}
        power = {"timestamp": now_text(), "cpu_watts": None, "gpu_watts": gpu_watts}
        return {
            **self._spent(),
            "loadavg": {"1m": load.load_1m, "5m": load.load_5m, "15m": load.load_15m},
            "power": power,
            "power_summary": self._power_summary(),
            "estimated_energy_kwh": self._energy_kwh,
        }

    def _power_summary(self) -> dict[str, Any]:
        """Averages over the heartbeats; CPU power is unknown, which is reported as `None`, not as zero."""
        each = {uuid: round(total / count, 3) for uuid, (total, count) in self._power_sums.items()}
        return {
            "avg_cpu_watts": None,
            "avg_gpu_watts": round(sum(each.values()), 3) if each else None,
            "per_gpu_avg_watts": each,
            "estimated_energy_kwh": self._energy_kwh,
            "estimated_energy_breakdown": {"cpu_kwh": None, "gpu_kwh": self._energy_kwh},
            "samples": self._samples,
        }

    @property
    def _energy_kwh(self) -> float | None:
        return None if self._joules is None else round(self._joules / 3.6e6, 6)
