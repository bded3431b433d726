"""Metric series: the points of a task in step order, downsampled for a chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import journal
from tunefleet.db.rows import PointRow
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.api import MetricsView
from tunefleet.schemas.ui import SeriesView

if TYPE_CHECKING:
    from tunefleet.orchestrator.telemetry.curves import Curves

# Points per JSON chunk: serializing one holds the GIL.
_POINTS_PER_CHUNK = 500
# How journals write NaN; some trainers log a null instead.
_NO_NUMBER: Final = "NaN"
_VALUES: Final = frozenset({int, float, bool, str})


async def read(
    core: ServerContext,
    actor: Actor,
    task_id: str,
    *,
    series: str = "train",
    names: Sequence[str] | None = None,
    max_points: int | None = None,
    after_step: int | None = None,
    to_step: int | None = None,
) -> bytes:
    """Return the points of a series in step order, one for each step, without superseded ones.

    Returns:
        The JSON of a `MetricsView`.
    """
    # Serialized in the reader's thread and in chunks: a hundred thousand points as one would block the event loop.
    may_read(actor)

    def operation(connection: Connection) -> bytes:
        id_ = find(connection, actor, task_id).id
        if max_points is None:
            rows: Iterable[PointRow] = journal.visible_points(
                connection, id_, series=series, after_step=after_step, to_step=to_step
            )
            found = _PointsJson(_merged(rows, names))
            known, total = found.names, found.count
        else:
            curve = _curves(core).of(connection, id_, series).cut(names, after_step, to_step)
            known, total = set(curve.columns), len(curve.steps)
            kept = curve.shape(max(1, max_points))
            found = _PointsJson(_merged(journal.points_of(connection, id_, curve.records(kept)), names))
        head = MetricsView(task_id=id_, series=series, names=tuple(sorted(known)), total=total, points=())
        return found.within(head)

    return await core.read(operation)


async def names_of(core: ServerContext, actor: Actor, task_id: str) -> list[SeriesView]:
    """Return the series of a task with their value names and step ranges."""
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


@dataclass(slots=True)
class _Charts:
    """The curve cache of this server; created on first use."""

    curves: Curves | None = None


def forget_unseen(core: ServerContext) -> None:
    """Evict unused curves from the cache."""
    curves = core.state(_Charts).curves
    if curves is not None:
        curves.expire()


def _curves(core: ServerContext) -> Curves:
    charts = core.state(_Charts)
    if charts.curves is None:
        # NumPy takes 0.1 s and 30 MB: it is imported only when a chart is requested.
        from tunefleet.orchestrator.telemetry.curves import Curves  # noqa: PLC0415

        charts.curves = Curves(clock=core.clock.monotonic, series_points=core.settings.series_points)
    return charts.curves


def values_of(text: str) -> dict[str, Any]:
    """Return the values of a stored point, as numbers and strings."""
    values: dict[str, Any] = orjson.loads(text)
    if _VALUES.issuperset(map(type, values.values())):
        return values
    return {name: value if type(value) in _VALUES else _NO_NUMBER for name, value in values.items()}


@dataclass(slots=True)
class _Point:
    step: int
    at: float
    epoch: float | None = None
    window: tuple[int, int] | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        """Return the fields of a `MetricPoint`."""
        return {
            "step": self.step, "epoch": self.epoch, "at": to_datetime(self.at), "window": self.window,
            "values": self.values,
        }  # fmt: skip


class _PointsJson:
    """Points as JSON chunks."""

    def __init__(self, points: Iterable[_Point]) -> None:
        self.names: set[str] = set()
        self.count = 0
        self._pieces: list[bytes] = []
        # In chunks: serializing holds the GIL, and freed points spare the garbage collector a scan of all of them.
        points = iter(points)
        while some := list(islice(points, _POINTS_PER_CHUNK)):
            self.count += len(some)
            self.names.update(*(point.values for point in some))
            self._pieces.append(orjson.dumps([point.view() for point in some], option=orjson.OPT_UTC_Z)[1:-1])

    def within(self, head: MetricsView) -> bytes:
        """Return the JSON of the view with these points."""
        return head.model_dump_json().encode().removesuffix(b"[]}") + b"[" + b",".join(self._pieces) + b"]}"


def _merged(rows: Iterable[PointRow], names: Sequence[str] | None) -> Iterator[_Point]:
    """Merge the rows of each step into one point; rows are in step order."""
    wanted = None if names is None else set(names)
    point: _Point | None = None
    for step, epoch, at, first, last, text in rows:
        values = values_of(text)
        if wanted is not None:
            values = {name: value for name, value in values.items() if name in wanted}
        if not values:
            continue
        if point is None or point.step != step:
            if point is not None:
                yield point
            point = _Point(step, at)
        # Both launches may have logged the step of a resume: for each name, the newer value wins.
        point.values.update(values)
        point.epoch = epoch if epoch is not None else point.epoch
        if first is not None and last is not None and point.window is None:
            point.window = (first, last)
    if point is not None:
        yield point
