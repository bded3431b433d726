"""Limits on a task's journals: records beyond them are dropped with one event, older points are thinned evenly.

A holder of an attempt's token can write anything into its journal; real runs stay far below these limits. The counters
are in the database, so that they hold for all servers and after a restart.

A launch that reports for a week has millions of points, and a chart shows two thousand. Points are thinned whenever a
quarter of the limit has arrived, so that the state of a launch follows from its cursor alone, on each server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import events, journal, tasks
from tunefleet.db.repositories.journal import JournalTotalsRow
from tunefleet.db.rows import LaunchRow
from tunefleet.orchestrator.tasks.metric_summary import MetricSummary

T = TypeVar("T", bound=tuple[Any, ...])

# The series of the metrics in lists.
_SUMMARIZED: Final = "train"
# Records of a task other than points: events, predictions, checkpoints and unreadable lines.
RECORDS: Final = 50_000
RECORD_CHARACTERS: Final = 64 << 20
LAUNCHES: Final = 5_000
# Of the first record of a launch, which is always kept.
LAUNCH_CHARACTERS: Final = 1_024
PROGRESS_CHARACTERS: Final = 4_096
# Of the name of a series or a value, and of a string value.
NAME_CHARACTERS: Final = 256
# Values of a point: an lm-eval group has a few for each of its tasks, and some groups have two thousand tasks.
VALUES: Final = 4_096
SERIES: Final = 1_000
# Characters for each point that a series may have: about what GRPO logs; SFT logs a tenth.
POINT_CHARACTERS: Final = 1_500
_LEAST_CHARACTERS: Final = 64 << 20


@dataclass(slots=True)
class JournalUsage:
    """Usage of a task's limits while a transaction adds records."""

    task_id: str
    row: JournalTotalsRow
    new: bool
    series: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, connection: Connection, task_id: str) -> JournalUsage:
        """Read the usage of a task."""
        row = journal.totals(connection, task_id)
        known = row or JournalTotalsRow(task_id)
        return cls(task_id, known, row is None, set(orjson.loads(known.series)))

    def take_records(self, rows: Sequence[T]) -> list[T]:
        """Return the records within the limits, and count them; their last column is the text."""
        count, characters = self.row.records, self.row.characters
        taken = []
        for row in rows:
            if count >= RECORDS or characters >= RECORD_CHARACTERS:
                self.dropped.add("journal.full")
                break
            count, characters = count + 1, characters + len(row[-1])
            taken.append(row)
        self.row = self.row._replace(records=count, characters=characters)
        return taken

    def take_points(self, rows: Sequence[T], keep: int) -> list[T]:
        """Return the points within the limits, and count them."""
        characters, most = self.row.point_characters, point_characters(keep)
        taken = []
        for row in rows:
            series = row[1]
            if series not in self.series:
                if len(self.series) >= SERIES or len(series) > NAME_CHARACTERS:
                    self.dropped.add("metrics.series")
                    continue
                self.series.add(series)
            if characters >= most:
                self.dropped.add("metrics.full")
                break
            characters += journal.POINT_CHARACTERS + len(series) + len(row[-1])
            taken.append(row)
        self.row = self.row._replace(point_characters=characters)
        return taken

    def summarize(self, connection: Connection, rows: Sequence[tuple[Any, ...]], *, again: bool) -> None:
        """Update the summary of the task's metrics with new points.

        Args:
            rows: Rows that `take_points` has returned.
            again: Whether a launch has superseded stored points: the summary is computed again from all that remain.
        """
        if again:
            points = journal.visible_points(connection, self.task_id, series=_SUMMARIZED)
            summary, new = MetricSummary(), [(point.step, point.values_json) for point in points]
        else:
            summary = MetricSummary.load(self.row.summary)
            new = [(row[2], row[-1]) for row in rows if row[1] == _SUMMARIZED]
        for step, values in new:
            summary.add(step, orjson.loads(values))
        if again or new:
            self.row = self.row._replace(summary=summary.dump())

    def give_back(self, characters: int) -> None:
        """Subtract deleted points."""
        left = max(0, self.row.point_characters - characters)
        self.row = self.row._replace(point_characters=left)

    def store(self, connection: Connection, keep: int, now: float) -> None:
        """Store the usage, and append an event for each kind of loss that was not reported before."""
        reported = orjson.loads(self.row.told)
        fresh = sorted(self.dropped.difference(reported))
        series = self.row.series
        if len(self.series) != len(orjson.loads(series)):
            series = orjson.dumps(sorted(self.series)).decode()
        self.row = self.row._replace(series=series, told=orjson.dumps(reported + fresh).decode())
        journal.put_totals(connection, self.row, new=self.new)
        self.new = False
        if fresh:
            _append_events(connection, self.task_id, fresh, keep, now)


def point_characters(keep: int) -> int:
    """Return the limit for the characters of a task's points, for `keep` points of a series."""
    return max(_LEAST_CHARACTERS, POINT_CHARACTERS * keep)


def _append_events(connection: Connection, task_id: str, names: Sequence[str], keep: int, now: float) -> None:
    row = tasks.by_ids(connection, [task_id])[task_id]
    messages = [{"name": name, "message": _message(name, keep), "level": "warning"} for name in names]
    events.append(connection, [events.of_task(row, "task.message", now, data) for data in messages])


def _message(name: str, keep: int) -> str:
    if name == "journal.full":
        return (
            f"No more events, predictions and checkpoint records are stored: the limit for a run is {RECORDS:,} "
            f"records or {RECORD_CHARACTERS >> 20} million characters. The worker's journal has all of them; points "
            "are still stored."
        )
    if name == "journal.launches":
        return f"Further launches are not stored: the limit for a run is {LAUNCHES:,}. The worker keeps all of them."
    if name == "metrics.full":
        return (
            f"Points are dropped: the limit for a run's points is {point_characters(keep) // 1_000_000:,} million "
            "characters (TUNEFLEET_SERIES_POINTS). The worker's journal has all of them."
        )
    if name == "metrics.series":
        return (
            f"Points of further series are dropped: the limit for a run is {SERIES:,} series, with names of up to "
            f"{NAME_CHARACTERS} characters. The worker's journal has all of them."
        )
    return (
        f"Values are dropped: the limit for a point is {VALUES:,} values, with names and strings of up to "
        f"{NAME_CHARACTERS} characters. The worker's journal has all of them."
    )


def times_thinned(cursor: int, limit: int) -> int:
    """Return how often the points of a launch were thinned."""
    return max(0, cursor // (limit // 4) - 3)


def thin_points(connection: Connection, launch: LaunchRow, cursor: int, limit: int, now: float) -> int:
    """Thin the points of a launch if due, and report it with an event the first time.

    Returns:
        The number of characters that were deleted.
    """
    before = times_thinned(launch.cursor, limit)
    if times_thinned(cursor, limit) == before:
        return 0
    # From the beginning: the limit may have been different when the older points arrived.
    gone = journal.thin(connection, launch, before_seq=cursor - limit // 4, apart=_apart(cursor, limit))
    if not before:
        row = tasks.by_ids(connection, [launch.task_id])[launch.task_id]
        message = (
            f"Points of {launch.launch} are downsampled from now on: the limit for a series is {limit:,} points "
            "(TUNEFLEET_SERIES_POINTS); the newest are complete, older ones are spread evenly."
        )
        data = {"name": "metrics.thinned", "message": message, "level": "info"}
        events.append(connection, [events.of_task(row, "task.message", now, data)])
    return gone


def _apart(cursor: int, limit: int) -> int:
    """Return the stride: one of this many points stays, so that they take half of the limit."""
    apart = 2
    while cursor > apart * (limit // 2):
        apart *= 2
    return apart
