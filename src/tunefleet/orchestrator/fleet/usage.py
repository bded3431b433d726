"""Usage reports, from stored usage and running attempts, and retention of usage and audit rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.access import audit, usage
from tunefleet.db.access.usage import SumRow, UsageRow
from tunefleet.db.rows import AttemptRow
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, is_operator, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import gpu_usage
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas import projects as wire

_DAY_S: Final = 86_400.0
_FORGET_EVERY_S: Final = 3600.0


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
            raise NotFoundError(f"There is no project {project}.", hint="`tunefleet projects ls` lists them.")
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
    return gpu_usage.measured(connection, whose)


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
