"""Usage of attempts: measured when they end, in the same transaction, and on request while they run.

An attempt counts from its accept to its end. Its cost is its share of the worker's `cost_per_hour`: its GPUs out of the
worker's GPUs or, on a worker without GPUs, one of the slots of its class. A task that is computed by another attempt's
run costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.access import usage
from tunefleet.db.access.usage import EnergyRow, UsageRow
from tunefleet.db.fleet import worker_rows
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.orchestrator.fleet import cluster_state, worker_state
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION
from tunefleet.placement import CPU_ONLY_SHARE
from tunefleet.schemas.worker_link import Capabilities, Load

# Longer gaps between power samples add no energy: unknown consumption is not estimated.
MAX_GAP_S: Final = 600.0
_HOUR_S: Final = 3600.0


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
