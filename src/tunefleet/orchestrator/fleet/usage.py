"""Usage of attempts: measured when they end and on request, reported, and kept for a limited time.

An attempt counts from its accept to its end. Its cost is its share of the worker's `cost_per_hour`: its GPUs out of
the worker's GPUs or, on a worker without GPUs, one of the slots of its class. A task that is computed by another
attempt's run costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.access import audit, usage
from tunefleet.db.access.usage import EnergyRow, SumRow, UsageRow
from tunefleet.db.fleet import worker_rows
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, is_operator, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state, worker_state
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION
from tunefleet.orchestrator.views import to_datetime
from tunefleet.placement import CPU_ONLY_SHARE
from tunefleet.schemas import projects as wire
from tunefleet.schemas.worker_link import Capabilities, Load

_DAY_S: Final = 86_400.0
_FORGET_EVERY_S: Final = 3600.0
# Longer gaps between power samples add no energy: unknown consumption is not estimated.
MAX_GAP_S: Final = 600.0
_HOUR_S: Final = 3600.0


@dataclass(slots=True)
class _Retention:
    """When expired usage and audit rows were deleted last."""

    forgot_at: float = 0.0


async def report(
    core: ServerContext, actor: Actor, *, project: str | None, since: float | None, by: wire.UsageBy
) -> wire.UsageView:
    """Return the usage since a time.

    Args:
        project: Project to report; None: the actor's own, or all projects for an operator.
        since: Unix time; None: the start of this calendar month, UTC.

    Raises:
        NotFoundError: If the project is not the actor's.
    """
    may_read(actor)
    if not is_operator(actor):
        if project not in {None, actor.project}:
            raise NotFoundError(f"Project {project} not found.", hint="`tunefleet projects ls` lists them.")
        project = actor.project
    now = core.clock.wall()
    start = quotas.month_start(now) if since is None else since

    def operation(connection: Connection) -> list[SumRow]:
        stored = usage.sums(connection, by=by, project=project, since=start)
        return stored + [_as_sum(row, by, start) for row in _running(connection, project, now)]

    found = await core.read(operation)
    rows = tuple(_row(key, [each for each in found if each.key == key]) for key in sorted({row.key for row in found}))
    return wire.UsageView(
        since=to_datetime(start), until=to_datetime(now), by=by, project=project, rows=rows, total=_row("total", found)
    )


async def forget(core: ServerContext) -> None:
    """Delete usage and audit rows past their retention, at most once per hour."""
    now = core.clock.wall()
    if now - core.state(_Retention).forgot_at < _FORGET_EVERY_S:
        return
    core.state(_Retention).forgot_at = now
    settings = core.settings

    def operation(connection: Connection) -> None:
        usage.forget_before(connection, now - settings.usage_kept_days * _DAY_S)
        audit.forget_before(connection, now - settings.audit_kept_days * _DAY_S)

    await core.write(operation)


def _running(connection: Connection, project: str | None, now: float) -> list[UsageRow]:
    width = len(AttemptRow._fields)
    whose = [
        (AttemptRow(*row[:width])._replace(finished_at=now), row[width], row[width + 1])
        for row in usage.live(connection, project)
    ]
    return measured(connection, whose)


def _as_sum(row: UsageRow, by: wire.UsageBy, since: float) -> SumRow:
    share = 1.0 if row.started_at >= since or row.wall_s <= 0 else max(0.0, row.ended_at - since) / row.wall_s
    heading = {
        "project": row.project, "worker": row.worker_id, "kind": row.kind, "day": row.day, "gpu": row.gpu_model or "",
    }  # fmt: skip
    energy_wh = None if row.energy_wh is None else row.energy_wh * share
    cost = None if row.cost is None else row.cost * share
    return SumRow(
        heading[by], row.gpu_model or "", 1, row.wall_s * share, row.cpu_s * share, row.gpu_s * share, energy_wh, cost
    )


def _row(key: str, sums: list[SumRow]) -> wire.UsageRow:
    models: dict[str, float] = {}
    for each in sums:
        if each.gpu_s:
            models[each.model] = models.get(each.model, 0.0) + each.gpu_s
    return wire.UsageRow(
        key=key,
        attempts=sum(each.attempts for each in sums),
        wall_s=sum(each.wall_s for each in sums),
        cpu_s=sum(each.cpu_s for each in sums),
        gpu_s=sum(each.gpu_s for each in sums),
        gpu_s_by_model=dict(sorted(models.items())),
        energy_wh=_sum(each.energy_wh for each in sums),
        cost=_sum(each.cost for each in sums),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def ended(connection: Connection, rows: Sequence[AttemptRow], tasks: Mapping[str, TaskRow]) -> None:
    """Store the usage of attempts that have just ended."""
    ran = [row for row in rows if row.accepted_at is not None and row.finished_at is not None]
    if not ran:
        return
    whose = [(row, tasks[row.task_id].project, tasks[row.task_id].owner) for row in ran]
    usage.add(connection, measured(connection, whose))
    usage.drop_energies(connection, [row.id for row in ran if row.gpus])


def measured(connection: Connection, whose: Sequence[tuple[AttemptRow, str, str]]) -> list[UsageRow]:
    """Return the usage of attempts until their end."""
    rows_of = {id_: worker_rows.get(connection, id_) for id_ in {row.worker_id for row, _, _ in whose}}
    known = {
        id_: None if found is None else worker_state.capabilities(found.capabilities) for id_, found in rows_of.items()
    }
    needs = cluster_state.needs(connection, {row.requirement_key for row, _, _ in whose})
    energies = usage.energies(connection, [row.id for row, _, _ in whose if row.gpus])
    # Only attempts of agents and registered jobs (which have no worker) can be reopened under the same token.
    held = {id_ for id_, found in rows_of.items() if found is None or found.session == AGENT_SESSION}
    again = {row.id: row.accepted_at or 0.0 for row, _, _ in whose if row.worker_id in held}
    since = usage.ended_at(connection, again) if again else {}
    found = []
    for row, project, owner in whose:
        need, has = needs[row.requirement_key], known[row.worker_id]
        begun, end = max(row.accepted_at or 0.0, since.get(row.id, 0.0)), row.finished_at or 0.0
        wall_s = max(0.0, end - begun)
        gpus = _gpus(row, has, need.gpu_count)
        alone = row.merged_into is None
        units = 0.0 if not alone else float(gpus) or CPU_ONLY_SHARE
        found.append(
            UsageRow(
                row.id, row.task_id, project, owner, row.worker_id, row.kind, _model(row, has) if gpus else None, gpus,
                begun, end, f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d}", wall_s,
                wall_s * need.cpu if alone else 0.0, wall_s * gpus, wall_s * units,
                _energy_wh(energies.get(row.id), end), _cost(row, has, gpus, wall_s),
            )
        )  # fmt: skip
    return found


def note_power(connection: Connection, reports: Mapping[str, tuple[float, Load]]) -> None:
    """Add the energy that the GPUs of open attempts have consumed since the last sample.

    Args:
        reports: Worker → time and content of its load report.
    """
    power = {id_: (at, watts) for id_, (at, load) in reports.items() if (watts := _watts(load))}
    if not power:
        return
    running = usage.on_gpus(connection, power)
    known = usage.energies(connection, [id_ for id_, _, _, _ in running])
    rows = []
    for id_, worker_id, gpus, accepted_at in running:
        at, watts = power[worker_id]
        mine = [watts[uuid] for uuid in gpus.split(",") if uuid in watts]
        if mine and at >= (accepted_at or at):
            # Before its first sample an attempt is assumed to have power the same power since its start.
            before = known.get(id_) or EnergyRow(id_, 0.0, sum(mine), accepted_at or at)
            rows.append(EnergyRow(id_, _joules(before, at, sum(mine)), sum(mine), at))
    usage.put_energies(connection, rows, known)


def _watts(load: Load) -> dict[str, float]:
    return {gpu.uuid: gpu.power_w for gpu in load.gpus if gpu.power_w is not None}


def _joules(before: EnergyRow, at: float, power_w: float) -> float:
    gap_s = at - before.at
    return before.joules + ((before.power_w + power_w) / 2 * gap_s if 0 < gap_s <= MAX_GAP_S else 0.0)


def _energy_wh(row: EnergyRow | None, end: float) -> float | None:
    return None if row is None else _joules(row, end, row.power_w) / _HOUR_S


def _gpus(row: AttemptRow, has: Capabilities | None, asked: int) -> int:
    if row.gpus:
        return row.gpus.count(",") + 1
    # The runner has chosen the GPUs itself: assume that it uses as many as the task requested.
    chooses = row.merged_into is None and row.slot_class == "job" and has is not None
    return min(asked, len(has.gpus)) if chooses and has is not None else 0


def _model(row: AttemptRow, has: Capabilities | None) -> str | None:
    devices = () if has is None else has.gpus
    mine = set((row.gpus or "").split(","))
    names = [gpu.name for gpu in devices if gpu.uuid in mine] or [gpu.name for gpu in devices]
    return _joined(names)


def _joined(names: Iterable[str]) -> str | None:
    return " + ".join(sorted(set(names))) or None


def _cost(row: AttemptRow, has: Capabilities | None, gpus: int, wall_s: float) -> float | None:
    if has is None:
        return None
    if row.merged_into is not None:
        return 0.0
    if has.gpus:
        share = gpus / len(has.gpus)
    else:
        slots = {str(name): count for name, count in has.slots.items()}
        share = 1 / max(1, slots.get(row.slot_class, 1))
    return has.cost_per_hour * share * wall_s / _HOUR_S
