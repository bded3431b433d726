"""Cached columns of metric points, for charts.

A chart shows two thousand of a hundred thousand points. Choosing them takes all values, and reading those from the
store takes a second: values are cached, and only new points are read. The store remains the source of truth: it is
asked each time which launches hide points, and the chosen points are read from it.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from tunefleet.db import Connection
from tunefleet.db.repositories import journal
from tunefleet.db.rows import LaunchRow
from tunefleet.orchestrator.telemetry import journal_limits

# Points per read, so that the event loop can run in between.
_CHUNK: Final = 2000
# Maximum number of cached 8-byte numbers of all tasks; curves derived from them may take as much again. Least recently
# used tasks are evicted first.
_MAX_NUMBERS: Final = 8_000_000
# Idle time after which a task's columns are evicted.
KEPT_S: Final = 900.0

Integers = NDArray[np.int64]
# Points are chosen by the shape of this many curves; the others are shown at the same steps.
_DENSE_NAMES: Final = 3


@dataclass(slots=True)
class _Series:
    """Cached points of one series; a row is a journal record."""

    launch: array[int] = field(default_factory=lambda: array("q"))
    seq: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    values: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    built: tuple[object, Curve] | None = None
    """The key and the curve that was built last."""

    def curve(self, launches: Sequence[LaunchRow]) -> Curve:
        """Return the curve, reused while no points were added, as during zooming."""
        of = len(self.step), tuple((each.number, each.hidden_after) for each in launches)
        if self.built is None or self.built[0] != of:
            self.built = of, _curve(self, launches)
        return self.built[1]

    def add(self, launch: int, seq: int, step: int, values: Mapping[str, Any]) -> int:
        """Add a record, and return how many numbers it uses."""
        row = len(self.step)
        self.launch.append(launch)
        self.seq.append(seq)
        self.step.append(step)
        for name, value in values.items():
            rows, numbers = self.values.setdefault(name, (array("q"), array("d")))
            rows.append(row)
            numbers.append(_number(value))
        return 3 + 2 * len(values)


@dataclass(slots=True)
class _Task:
    lock: threading.Lock = field(default_factory=threading.Lock)
    reached: dict[int, int] = field(default_factory=dict)
    thinned: dict[int, int] = field(default_factory=dict)
    """Launch → how often its points had been thinned when they were read."""
    series: dict[str, _Series] = field(default_factory=dict)
    numbers: int = 0
    looked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a series in step order, one for each step, without those that a later launch superseded.

    Args:
        steps: Step of each point.
        columns: Name → value of each point; see `Column` for missing and non-numeric values.
        rows: Launch, sequence number and point index of the records, oldest first.
    """

    steps: Integers
    columns: Mapping[str, Column]
    rows: tuple[Integers, Integers, Integers]

    def cut(self, names: Sequence[str] | None, after_step: int | None, to_step: int | None) -> Curve:
        """Return the points with one of these values, after one step and up to another."""
        columns = {name: column for name, column in self.columns.items() if names is None or name in names}
        wanted = np.zeros(len(self.steps), dtype=bool)
        for column in columns.values():
            wanted |= ~np.isnan(column)
        wanted &= self.steps > after_step if after_step is not None else True
        wanted &= self.steps <= to_step if to_step is not None else True
        launch, seq, point = self.rows
        mine = wanted[point]
        renumbered = (np.cumsum(wanted) - 1)[point[mine]]
        left = {name: column[wanted] for name, column in columns.items()}
        present = {name: column for name, column in left.items() if not np.isnan(column).all()}
        return Curve(self.steps[wanted], present, (launch[mine], seq[mine], renumbered))

    def shape(self, max_points: int) -> list[int]:
        """Return the indices of the points to show in a chart of `max_points`."""
        return downsample(self.columns, len(self.steps), max_points)

    def records(self, points: Sequence[int]) -> list[tuple[int, int]]:
        """Return launch and sequence number of the records behind points, oldest first."""
        launch, seq, point = self.rows
        mine = np.isin(point, points)
        return list(zip(launch[mine].tolist(), seq[mine].tolist(), strict=True))


class Curves:
    """Cache of tasks' points; thread-safe."""

    def __init__(
        self,
        most_numbers: int = _MAX_NUMBERS,
        clock: Callable[[], float] = time.monotonic,
        *,
        series_points: int = 200_000,
    ) -> None:
        self._lock = threading.Lock()
        self._tasks: OrderedDict[str, _Task] = OrderedDict()
        self._most_numbers = most_numbers
        self._series_points = series_points
        self._clock = clock

    def names(self, connection: Connection, task_id: str) -> tuple[str, ...]:
        """Return the names of a task's series."""
        with self._task(task_id) as task:
            self._read(connection, task_id, task, journal.launches_of(connection, task_id))
            names = tuple(sorted(task.series))
        self._forget(task_id)
        return names

    def of(self, connection: Connection, task_id: str, series: str) -> Curve:
        """Return a series of a task."""
        launches = journal.launches_of(connection, task_id)
        with self._task(task_id) as task:
            self._read(connection, task_id, task, launches)
            curve = (task.series.get(series) or _Series()).curve(launches)
        self._forget(task_id)
        return curve

    def expire(self) -> None:
        """Evict tasks that were not used for `KEPT_S`."""
        before = self._clock() - KEPT_S
        with self._lock:
            for task_id, task in list(self._tasks.items()):
                if task.looked_at > before:
                    break  # in order of use: all others are newer
                del self._tasks[task_id]

    def _task(self, task_id: str) -> _Locked:
        with self._lock:
            task = self._tasks.setdefault(task_id, _Task())
            task.looked_at = self._clock()
            self._tasks.move_to_end(task_id)
        return _Locked(task)

    def _read(self, connection: Connection, task_id: str, task: _Task, launches: Sequence[LaunchRow]) -> None:
        thinned = {each.number: journal_limits.times_thinned(each.cursor, self._series_points) for each in launches}
        if any(thinned.get(number) != times for number, times in task.thinned.items()):
            # Thinning has deleted points that are cached: read the task again.
            task.reached, task.series, task.numbers = {}, {}, 0
        task.thinned = thinned
        _read(connection, task_id, task, launches)

    def _forget(self, but: str) -> None:
        with self._lock:
            total = sum(task.numbers for task in self._tasks.values())
            for task_id in list(self._tasks):
                if total <= self._most_numbers or task_id == but:
                    break
                total -= self._tasks.pop(task_id).numbers


@dataclass(slots=True)
class _Locked:
    task: _Task

    def __enter__(self) -> _Task:
        self.task.lock.acquire()
        return self.task

    def __exit__(self, *_: object) -> None:
        self.task.lock.release()


def _read(connection: Connection, task_id: str, task: _Task, launches: Sequence[LaunchRow]) -> None:
    for launch in launches:
        reached = task.reached.get(launch.number, 0)
        while reached < launch.cursor:
            rows = journal.points_of_launch(connection, task_id, launch.number, from_seq=reached, limit=_CHUNK)
            for seq, series, step, _, _, text in rows:
                found = task.series.setdefault(series, _Series())
                task.numbers += found.add(launch.number, seq, step, orjson.loads(text))
            reached = rows[-1][0] + 1 if len(rows) == _CHUNK else max(launch.cursor, rows[-1][0] + 1 if rows else 0)
            task.reached[launch.number] = reached


def _curve(series: _Series, launches: Sequence[LaunchRow]) -> Curve:
    launch, seq, step = (np.array(each, dtype=np.int64) for each in (series.launch, series.seq, series.step))
    shown = np.ones(len(step), dtype=bool)
    for each in launches:
        if each.hidden_after is not None:
            shown &= (launch != each.number) | (step <= each.hidden_after)
    order = np.lexsort((seq, launch, step))
    order = order[shown[order]]
    steps, point = np.unique(step[order], return_inverse=True)
    point_of = np.full(len(step), -1, dtype=np.int64)
    point_of[order] = point
    # For each name, the newest record of a step wins: values are written in order of age.
    age = np.empty(len(step), dtype=np.int64)
    age[order] = np.arange(len(order))
    columns = {}
    for name, (rows, numbers) in series.values.items():
        row, value = np.array(rows, dtype=np.int64), np.array(numbers, dtype=np.float64)
        row, value = row[shown[row]], value[shown[row]]
        oldest_first = np.argsort(age[row], kind="stable")
        column = np.full(len(steps), np.nan)
        column[point_of[row[oldest_first]]] = value[oldest_first]
        columns[name] = column
    return Curve(steps, columns, (launch[order], seq[order], point.astype(np.int64)))


def _number(value: object) -> float:
    """Return a value as a number; infinity for anything that is not a finite number."""
    try:
        number = float(value) if isinstance(value, int | float) else math.inf
    except OverflowError:
        return math.inf
    return math.inf if math.isnan(number) else number


# One value for each point in step order: NaN if it is missing, infinity if it is not a number.
Column = NDArray[np.float64]


def downsample(columns: Mapping[str, Column], count: int, max_points: int) -> list[int]:
    """Choose at most `max_points` points that keep the shape of the series.

    The first and last point are kept, the highest and lowest of each value in each part of the series, and all points
    of sparse values (evaluations) if they fit.

    Returns:
        Indices in ascending order.
    """
    if count <= max_points:
        return list(range(count))
    if max_points < 3:
        return list(range(count - max_points, count))
    where = {name: np.flatnonzero(~np.isnan(column)) for name, column in columns.items()}
    kept = {0, count - 1}
    for seldom in sorted(where.values(), key=len):
        if len(seldom) <= max_points // 4 and len(kept.union(seldom.tolist())) <= max_points // 2:
            kept.update(seldom.tolist())
    dense = sorted(
        (n for n in columns if len(where[n]) > max_points // 4), key=lambda n: (n != "loss", -len(where[n]), n)
    )
    kept |= _extremes([columns[name] for name in dense], count, max_points)
    curves = [_scaled(columns[name]) for name in dense[:_DENSE_NAMES]]
    kept |= _largest_triangles(curves, count, max_points - len(kept))
    return sorted(kept)


def _extremes(columns: Sequence[Column], count: int, max_points: int) -> set[int]:
    """Choose the highest and lowest points of each column in equal parts, at most a quarter of `max_points`."""
    # A spike of a value that does not shape the choice would otherwise be missing from its chart.
    parts = max_points // (8 * max(1, len(columns)))
    edges = np.arange(parts + 1) * count // max(1, parts)
    chosen: set[int] = set()
    for column in columns:
        numbers = np.where(np.isfinite(column), column, np.nan)
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            part = numbers[start:end]
            if not np.isnan(part).all():
                chosen.update((start + int(np.nanargmin(part)), start + int(np.nanargmax(part))))
    return chosen


def _scaled(column: Column) -> Column:
    numbers = np.where(np.isfinite(column), column, np.nan)
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    # Halved, so that the span of the largest floats does not overflow.
    return (numbers / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)


def _largest_triangles(curves: Sequence[Column], count: int, room: int) -> set[int]:
    """Choose one index in each of `room` buckets between the first and the last point."""
    # Largest triangle three buckets (Steinarsson 2013), but with the means of both neighbouring buckets: the original
    # uses the point chosen before, which makes the loop sequential; this way NumPy computes all buckets together.
    edges = 1 + np.arange(room + 1) * (count - 2) // room
    starts, bucket = edges[:-1], np.repeat(np.arange(room), np.diff(edges))
    # Bucket -1 is the first point alone, the last bucket the last one.
    middles = np.concatenate(([0.0], (edges[:-1] + edges[1:] - 1) / 2, [count - 1.0]))
    position, before, after = np.arange(1.0, count - 1), middles[bucket], middles[bucket + 2]
    total = np.zeros(count - 2)
    for curve in curves:
        inner = curve[1:-1]
        has_value = ~np.isnan(inner)
        sums = np.add.reduceat(np.where(has_value, inner, 0.0), starts - 1)
        counts = np.add.reduceat(has_value.astype(np.float64), starts - 1)
        means = np.divide(sums, counts, out=np.full(room, np.nan), where=counts > 0)
        means = np.concatenate((curve[:1], means, curve[-1:]))
        a, c = (np.where(np.isnan(side), inner, side) for side in (means[bucket], means[bucket + 2]))
        area = np.abs((before - after) * (inner - a) - (before - position) * (c - a))
        total += np.where(has_value, area, 0.0)
    largest = np.flatnonzero(total == np.maximum.reduceat(total, starts - 1)[bucket])
    _, first = np.unique(bucket[largest], return_index=True)
    return set((largest[first] + 1).tolist())
