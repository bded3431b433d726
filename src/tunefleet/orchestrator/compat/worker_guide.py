"""Workers and metrics for the worker guide's clients; stores nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tunefleet.db import Connection
from tunefleet.db.engine import statistics
from tunefleet.db.engine.statistics import KindRow
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.orchestrator.workers import workers
from tunefleet.placement.policy import category
from tunefleet.schemas.fleet import WorkerView
from tunefleet.schemas.worker_guide import EndedTask, GuideWorker, Snapshot, Timing
from tunefleet.transport.redis.worker_guide_events import hardware

# Number of ended tasks in the snapshot.
NEWEST: Final = 100
_MOST: Final = 1000
_JOULES_PER_KWH: Final = 3.6e6


async def list_workers(core: ServerContext, actor: Actor) -> list[GuideWorker]:
    """Return all workers."""
    return [_shown(view) for view in await _all(core, actor)]


async def get_worker(core: ServerContext, actor: Actor, worker_id: str) -> GuideWorker:
    """Return one worker."""
    return _shown(await workers.get(core, actor, worker_id))


async def snapshot(core: ServerContext, actor: Actor) -> Snapshot:
    """Return the current metrics."""
    may_read(actor)
    registered = await _all(core, actor)

    def operation(connection: Connection) -> tuple[list[KindRow], list[TaskRow]]:
        return statistics.by_kind(connection, actor.project), statistics.newest_ended(
            connection, actor.project, limit=NEWEST
        )

    kinds, ended = await core.read(operation)
    now = core.clock.wall()
    present = [view for view in registered if view.status == "online"]
    standby = tuple(view.id for view in registered if view.elastic_disabled)
    heartbeats = sum(presence.renewals for presence in core.state(Fleet).presences.values())
    each = {view.id: _spent(view, now) for view in present}
    return Snapshot(
        generated_at=to_datetime(now),
        counters={
            "tasks_submitted": sum(row.how_many for row in kinds),
            "tasks_succeeded": sum(row.how_many for row in kinds if row.status == "completed"),
            "tasks_failed": sum(row.how_many for row in kinds if row.status == "failed"),
            "tasks_requeued": sum(row.again for row in kinds),
            "workers_registered": len(registered),
            "workers_unregistered": sum(view.status == "offline" for view in registered),
            "worker_heartbeats": heartbeats,
        },
        task_timings=_timings(kinds),
        workers={"totals": _totals(present, each.values()), "workers": each},
        active_workers_count=sum(view.id not in standby for view in present),
        elastic_disabled_workers=standby,
        completed_tasks=tuple(_ended(row) for row in ended),
    )


async def _all(core: ServerContext, actor: Actor) -> list[WorkerView]:
    found: list[WorkerView] = []
    cursor: str | None = None
    while True:
        page = await workers.list_(core, actor, limit=_MOST, cursor=cursor)
        found += page.items
        # The guide's list has no pages, so all of ours are joined.
        cursor = page.next_cursor
        if cursor is None:
            return found


def _shown(view: WorkerView) -> GuideWorker:
    has = view.capabilities
    return GuideWorker(
        worker_id=view.id,
        status="RUNNING" if view.running else "IDLE",
        started_at=to_optional_datetime(has.started_at),
        pid=has.pid,
        env={"hostname": has.hostname, "platform": has.platform, "version": has.version},
        hardware=hardware(has),
        tags=has.tags,
        last_seen=view.last_seen_at,
        cached_models=has.cached_models,
        cached_datasets=has.cached_datasets,
        cache_updated_ts=to_optional_datetime(has.cache_read_at) or view.registered_at,
        cost_per_hour=has.cost_per_hour,
        stale=view.status != "online",
        elastic_disabled=view.elastic_disabled,
    )


def _spent(view: WorkerView, now: float) -> dict[str, Any]:
    has = view.capabilities
    uptime_s = max(0.0, now - has.started_at) if has.started_at is not None else None
    return {
        "uptime_sec": uptime_s,
        "cost_per_hour": has.cost_per_hour,
        "accrued_cost_usd": None if uptime_s is None else uptime_s / 3600 * has.cost_per_hour,
        **_energy(view),
        "gpu_memory_total_bytes": sum(gpu.memory_total_bytes for gpu in has.gpus),
        "load": view.load.model_dump(mode="json") if view.load is not None else None,
    }


def _energy(view: WorkerView) -> dict[str, float | None]:
    joules = view.load.gpu_energy_j if view.load is not None else None
    return _energy_fields(None if joules is None else joules / _JOULES_PER_KWH)


def _energy_fields(gpu_kwh: float | None) -> dict[str, float | None]:
    """Return energy under the contract's names: only GPU energy is measured; None if no worker reports it."""
    return {"estimated_energy_kwh": gpu_kwh, "cpu_energy_kwh": None, "gpu_energy_kwh": gpu_kwh}


def _totals(present: Sequence[WorkerView], each: Iterable[dict[str, Any]]) -> dict[str, Any]:
    figures_of = list(each)
    known = [one["estimated_energy_kwh"] for one in figures_of if one["estimated_energy_kwh"] is not None]
    return {
        "accrued_cost_usd": sum(one["accrued_cost_usd"] or 0.0 for one in figures_of),
        "uptime_sec": sum(one["uptime_sec"] or 0.0 for one in figures_of),
        **_energy_fields(sum(known) if known else None),
        "workers_with_energy": len(known),
        "gpu_memory_total_bytes": sum(gpu.memory_total_bytes for view in present for gpu in view.capabilities.gpus),
    }


def _timings(kinds: Sequence[KindRow]) -> dict[str, Timing]:
    done = [row for row in kinds if row.status == "completed"]
    names = ("inference", "training", "other")
    return {
        "overall": _timing(done),
        **{name: _timing([row for row in done if category(row.kind) == name]) for name in names},
    }


def _timing(rows: Sequence[KindRow]) -> Timing:
    ran = sum(row.ran for row in rows)
    sums = {
        "queue": sum(row.queue_s for row in rows),
        "execution": sum(row.execution_s for row in rows),
        "total": sum(row.total_s for row in rows),
    }
    found: dict[str, float | int | None] = {}
    for name, total_s in sums.items():
        found |= {
            f"{name}_count": ran,
            f"{name}_total_sec": total_s,
            f"{name}_avg_sec": total_s / ran if ran else None,
        }
    return Timing.model_validate(found)


def _ended(row: TaskRow) -> EndedTask:
    return EndedTask(
        task_id=row.id,
        task_type=row.kind,
        status=row.status,
        worker_id=row.worker_id,
        started_at=to_optional_datetime(row.started_at),
        finished_at=to_datetime(row.finished_at or 0.0),
    )
