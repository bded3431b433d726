"""How much of a task's journals the server keeps: what is beyond it is left out, and an event says so once.

Whoever holds the token of an attempt can write whatever they like into its journal; what a training writes is far below
each of these limits. What is counted lies in the database: it holds for all servers, and after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import events, journal, journal_totals, tasks
from tunefleet.db.repositories.journal_totals import RoomRow

T = TypeVar("T", bound=tuple[Any, ...])

RECORDS: Final = 50_000
RECORD_CHARACTERS: Final = 64 << 20
"""So much is kept of a task's journals beside points: events, predictions, checkpoints, and what cannot be read."""
LAUNCHES: Final = 5_000
LAUNCH_CHARACTERS: Final = 1_024
"""Of the first record of a launch; it is kept however many other records there are."""
PROGRESS_CHARACTERS: Final = 4_096
NAME_CHARACTERS: Final = 256
"""Of the name of a series or a value, and of a value that is a text."""
# Of a point. An lm-eval task that is a group has a few for each of its tasks, of which some have two thousand.
VALUES: Final = 4_096
SERIES: Final = 1_000
POINT_CHARACTERS: Final = 1_500
"""So many characters of points are kept for each point that a series may have; GRPO logs as many, SFT a tenth."""
_LEAST_CHARACTERS: Final = 64 << 20


@dataclass(slots=True)
class JournalUsage:
    """What of a task's journals is kept, while an operation adds to it."""

    task_id: str
    row: RoomRow
    new: bool
    series: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, connection: Connection, task_id: str) -> JournalUsage:
        """Read what is kept of a task."""
        row = journal_totals.get(connection, task_id)
        known = row or RoomRow(task_id)
        return cls(task_id, known, row is None, set(orjson.loads(known.series)))

    def take_records(self, rows: Sequence[T]) -> list[T]:
        """Return for which records there is room, and count them; their last column is the text."""
        count, characters = self.row.records, self.row.characters
        taken = []
        for row in rows:
            if count >= RECORDS or characters >= RECORD_CHARACTERS:
                self.lost.add("journal.full")
                break
            count, characters = count + 1, characters + len(row[-1])
            taken.append(row)
        self.row = self.row._replace(records=count, characters=characters)
        return taken

    def take_points(self, rows: Sequence[T], keep: int) -> list[T]:
        """Return for which points there is room, and count them."""
        characters, most = self.row.point_characters, point_characters(keep)
        taken = []
        for row in rows:
            series = row[1]
            if series not in self.series:
                if len(self.series) >= SERIES or len(series) > NAME_CHARACTERS:
                    self.lost.add("metrics.series")
                    continue
                self.series.add(series)
            if characters >= most:
                self.lost.add("metrics.full")
                break
            characters += journal.POINT_CHARACTERS + len(series) + len(row[-1])
            taken.append(row)
        self.row = self.row._replace(point_characters=characters)
        return taken

    def give_back(self, characters: int) -> None:
        """Count points no more that were deleted."""
        left = max(0, self.row.point_characters - characters)
        self.row = self.row._replace(point_characters=left)

    def store(self, connection: Connection, keep: int, now: float) -> None:
        """Store what is kept now, and append an event for each kind of loss of which none was told before."""
        told = orjson.loads(self.row.told)
        fresh = sorted(self.lost.difference(told))
        series = self.row.series
        if len(self.series) != len(orjson.loads(series)):
            series = orjson.dumps(sorted(self.series)).decode()
        self.row = self.row._replace(series=series, told=orjson.dumps(told + fresh).decode())
        journal_totals.put(connection, self.row, new=self.new)
        self.new = False
        if fresh:
            _tell(connection, self.task_id, fresh, keep, now)


def point_characters(keep: int) -> int:
    """Return how many characters of a task's points are kept, where so many points of a series are."""
    return max(_LEAST_CHARACTERS, POINT_CHARACTERS * keep)


def _tell(connection: Connection, task_id: str, names: Sequence[str], keep: int, now: float) -> None:
    row = tasks.by_ids(connection, [task_id])[task_id]
    said = [{"name": name, "message": _message(name, keep), "level": "warning"} for name in names]
    events.append(connection, [events.of_task(row, "task.message", now, data) for data in said])


def _message(name: str, keep: int) -> str:
    if name == "journal.full":
        return (
            f"No more events, predictions and checkpoint records are kept: the server keeps {RECORDS:,} of a task, of "
            f"{RECORD_CHARACTERS >> 20} million characters together. The worker's journal has them all; points go on."
        )
    if name == "journal.launches":
        return f"Nothing of further launches is kept: the server keeps {LAUNCHES:,} of a task. Its worker has them all."
    if name == "metrics.full":
        return (
            f"Points are left out: the server keeps {point_characters(keep) // 1_000_000:,} million characters of a "
            "task's points (TUNEFLEET_SERIES_POINTS). The worker's journal has them all."
        )
    if name == "metrics.series":
        return (
            f"Points of further series are left out: the server keeps {SERIES:,} series of a task, with names of up to "
            f"{NAME_CHARACTERS} characters. The worker's journal has them all."
        )
    return (
        f"Values are left out: the server keeps {VALUES:,} of a point, with names and texts of up to {NAME_CHARACTERS} "
        "characters. The worker's journal has them all."
    )
