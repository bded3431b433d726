"""Resource usage of attempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, case, delete, func, insert, literal, select, text, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.core import attempts, tasks
from tunefleet.db.tables.operations import attempt_energy, usage

_OPEN = text("attempts.state IN ('offered', 'accepted')")
_ON_GPUS = text("usage.gpu_s > 0")
_at = usage.c
GROUPS: Final = {
    "project": _at.project,
    "worker": _at.worker_id,
    "kind": _at.kind,
    "day": _at.day,
    "gpu": func.coalesce(_at.gpu_model, ""),
}


class UsageRow(NamedTuple):
    """Usage of an attempt, without the row's number."""

    attempt_id: str
    task_id: str
    project: str
    owner: str
    worker_id: str
    kind: str
    gpu_model: str | None
    gpus: int
    started_at: float
    ended_at: float
    day: str
    wall_s: float
    cpu_s: float
    gpu_s: float
    share_s: float
    energy_wh: float | None
    cost: float | None


class EnergyRow(NamedTuple):
    """Energy of an open attempt's GPUs so far, and their power at a time."""

    attempt_id: str
    joules: float
    power_w: float
    at: float


class SumRow(NamedTuple):
    """Usage of one group on one GPU model."""

    key: str
    model: str
    attempts: int
    wall_s: float
    cpu_s: float
    gpu_s: float
    energy_wh: float | None
    cost: float | None


_INSERT = Bulk(insert(usage), UsageRow._fields)


def add(connection: Connection, rows: Sequence[UsageRow]) -> None:
    """Store the usage of attempts that have just ended."""
    _INSERT.run(connection, rows)


def gpu_seconds(connection: Connection, project: str, since: float) -> float:
    """Return the GPU seconds of a project's ended attempts since a time."""
    began = case((_at.started_at < since, since), else_=_at.started_at)
    query = select(func.sum(_at.gpus * (_at.ended_at - began))).where(
        _ON_GPUS, _at.project == bindparam("project"), _at.ended_at >= bindparam("since")
    )
    return float(connection.execute(query, {"project": project, "since": since}).scalar() or 0.0)


def sums(connection: Connection, *, by: str, project: str | None, since: float) -> list[SumRow]:
    """Return the usage of ended attempts since a time; attempts that started earlier count proportionally."""
    wall_s = _at.ended_at - _at.started_at
    part: Any = case(
        (_at.started_at >= since, literal(1.0)), (wall_s <= 0, literal(1.0)), else_=(_at.ended_at - since) / wall_s
    )
    key, model = GROUPS[by], func.coalesce(_at.gpu_model, "")
    figures = (_at.wall_s, _at.cpu_s, _at.gpu_s, _at.energy_wh, _at.cost)
    columns = (key.label("k"), model.label("m"), func.count(), *(func.sum(each * part) for each in figures))
    query = select(*columns).where(_at.ended_at >= since).group_by(key, model).order_by(key, model)
    if project is not None:
        query = query.where(_at.project == project)
    return [SumRow(*row) for row in connection.execute(query)]


def shares_after(connection: Connection, seq: int, since: float) -> list[tuple[int, str, float, float]]:
    """Return the fair-share usage of rows after a number: number, project, end and seconds."""
    query = select(_at.seq, _at.project, _at.ended_at, _at.share_s).where(_at.seq > seq, _at.ended_at >= since)
    return [(number, project, at, share_s) for number, project, at, share_s in connection.execute(query)]


def ended_at(connection: Connection, accepted: Mapping[str, float]) -> dict[str, float]:
    """Return until when the usage of attempts is stored already, for attempts that ended and were reopened."""
    query = select(_at.attempt_id, func.max(_at.ended_at)).where(
        _at.ended_at >= min(accepted.values()), _at.attempt_id.in_(list(accepted))
    )
    return {id_: at for id_, at in connection.execute(query.group_by(_at.attempt_id))}


def forget_before(connection: Connection, at: float) -> None:
    """Delete older rows."""
    connection.execute(delete(usage).where(_at.ended_at < at))


def on_gpus(connection: Connection, worker_ids: Collection[str]) -> list[tuple[str, str, str, float | None]]:
    """Return attempt, worker, GPUs and acceptance time of attempts on GPUs of these workers."""
    at = attempts.c
    query = select(at.id, at.worker_id, at.gpus, at.accepted_at).where(
        _OPEN, at.state == "accepted", at.gpus.is_not(None), at.worker_id.in_(list(worker_ids))
    )
    return [(id_, worker_id, gpus, since) for id_, worker_id, gpus, since in connection.execute(query)]


def energies(connection: Connection, attempt_ids: Sequence[str]) -> dict[str, EnergyRow]:
    """Return the recorded energy of open attempts, by attempt."""
    if not attempt_ids:
        return {}
    query = select(attempt_energy).where(attempt_energy.c.attempt_id.in_(list(attempt_ids)))
    return {row[0]: EnergyRow(*row) for row in connection.execute(query)}


def put_energies(connection: Connection, rows: Sequence[EnergyRow], known: Collection[str]) -> None:
    """Store the energy of open attempts; `known` are those that already have a row."""
    at = attempt_energy.c
    old = [
        {"b_id": row.attempt_id, "b_joules": row.joules, "b_power_w": row.power_w, "b_at": row.at}
        for row in rows
        if row.attempt_id in known
    ]
    new = [row._asdict() for row in rows if row.attempt_id not in known]
    if old:
        changed = update(attempt_energy).where(at.attempt_id == bindparam("b_id"))
        values: dict[str, Any] = {
            "joules": bindparam("b_joules"),
            "power_w": bindparam("b_power_w"),
            "at": bindparam("b_at"),
        }
        connection.execute(changed.values(values), old)
    if new:
        connection.execute(insert(attempt_energy), new)


def drop_energies(connection: Connection, attempt_ids: Sequence[str]) -> None:
    """Delete the energy of attempts that have ended."""
    if attempt_ids:
        connection.execute(delete(attempt_energy).where(attempt_energy.c.attempt_id.in_(list(attempt_ids))))


def live(connection: Connection, project: str | None) -> list[tuple[Any, ...]]:
    """Return the accepted attempts, each with its task's project and owner."""
    query = (
        select(attempts, tasks.c.project, tasks.c.owner)
        .join(tasks, tasks.c.seq == attempts.c.task_seq)
        .where(_OPEN, attempts.c.state == "accepted")
    )
    if project is not None:
        query = query.where(tasks.c.project == project)
    return [tuple(row) for row in connection.execute(query)]
