"""Series out: the points of a task in step order, thinned for a chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from tunefleet.services.core import Core
from tunefleet.services.identity import Actor, may_read
from tunefleet.services.tasks import find
from tunefleet.services.views import moment
from tunefleet.store import Connection, journal
from tunefleet.store.rows import PointRow
from tunefleet.wire.api import MetricPoint, MetricsView
from tunefleet.wire.page import SeriesView

if TYPE_CHECKING:
    from tunefleet.services.curves import Curves


async def read(
    core: Core,
    actor: Actor,
    task_id: str,
    *,
    series: str = "train",
    names: Sequence[str] | None = None,
    max_points: int | None = None,
    after_step: int | None = None,
    to_step: int | None = None,
) -> MetricsView:
    """Return the points of a series in step order, one a step; what a resume superseded is left out.

    Args:
        core: The server.
        actor: Who reads.
        task_id: The task, or a unique beginning of its id.
        series: Which series.
        names: Only these values; default all.
        max_points: Leave out points that a chart would not show, until there are so many at most.
        after_step: Only later steps.
        to_step: Only steps up to this one.

    Raises:
        NotFoundError: If there is no such task.
    """
    may_read(actor)

    def operation(connection: Connection) -> MetricsView:
        id_ = find(connection, actor, task_id).id
        if max_points is None:
            rows: Iterable[PointRow] = journal.visible_points(
                connection, id_, series=series, after_step=after_step, to_step=to_step
            )
            points = _merged(rows, names)
            known, total = sorted({name for point in points for name in point.values}), len(points)
        else:
            curve = _curves(core).of(connection, id_, series).cut(names, after_step, to_step)
            known, total = sorted(curve.columns), len(curve.steps)
            kept = curve.shape(max(1, max_points))
            points = _merged(journal.points_of(connection, id_, curve.records(kept)), names)
        return MetricsView(
            task_id=id_, series=series, names=tuple(known), total=total, points=tuple(point.view() for point in points)
        )

    return await core.read(operation)


async def names_of(core: Core, actor: Actor, task_id: str) -> list[SeriesView]:
    """Return which series a task has, and what is in them.

    Raises:
        NotFoundError: If there is no such task.
    """
    may_read(actor)

    def operation(connection: Connection) -> list[SeriesView]:
        id_ = find(connection, actor, task_id).id
        found = []
        for series in _curves(core).names(connection, id_):
            curve = _curves(core).of(connection, id_, series)
            if len(curve.steps):
                first, last = int(curve.steps[0]), int(curve.steps[-1])
                found.append(
                    SeriesView(
                        series=series, names=tuple(sorted(curve.cut(None, None, None).columns)),
                        points=len(curve.steps), first_step=first, last_step=last,
                    )
                )  # fmt: skip
        return found

    return await core.read(operation)


def _curves(core: Core) -> Curves:
    if core.curves is None:
        # NumPy is a tenth of a second and 30 MB: a server that nobody looks at does without.
        from tunefleet.services.curves import Curves  # noqa: PLC0415

        core.curves = Curves()
    return core.curves


@dataclass(slots=True)
class _Point:
    step: int
    at: float
    epoch: float | None = None
    window: tuple[int, int] | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def view(self) -> MetricPoint:
        return MetricPoint.model_construct(
            step=self.step, epoch=self.epoch, at=moment(self.at), window=self.window, values=self.values
        )


def _merged(rows: Iterable[PointRow], names: Sequence[str] | None) -> list[_Point]:
    wanted = None if names is None else set(names)
    merged: dict[int, _Point] = {}
    for step, epoch, at, first, last, text in rows:
        values: dict[str, Any] = orjson.loads(text)
        if wanted is not None:
            values = {name: value for name, value in values.items() if name in wanted}
        if not values:
            continue
        # At the step of a resume both launches may have logged: by name, the newer one counts.
        point = merged.get(step)
        if point is None:
            point = merged[step] = _Point(step, at)
        point.values.update(values)
        point.epoch = epoch if epoch is not None else point.epoch
        if first is not None and last is not None and point.window is None:
            point.window = (first, last)
    return list(merged.values())
