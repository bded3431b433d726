"""Launches, metric points and other journal records, and the size of the stored journals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, bindparam, case, delete, func, insert, or_, select, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.rows import LaunchRow, PointRow
from tunefleet.db.tables.core import journal_records, launches, metric_points
from tunefleet.db.tables.operations import journal_room, reported_predictions

_OF_TASK = select(launches).where(launches.c.task_id == bindparam("task_id")).order_by(launches.c.number)
_OF_TASKS = select(launches).where(launches.c.task_id.in_(bindparam("ids", expanding=True)))
_ONE = select(launches).where(launches.c.task_id == bindparam("task_id"), launches.c.launch == bindparam("launch"))
_POINT = Bulk(insert(metric_points), [column.name for column in metric_points.c])
POINT_CHARACTERS: Final = 100
"""Size of a point in addition to its values and series name."""
# Points per query by number.
_AT_ONCE = 500
# Points that are fetched at a time: a series may have a hundred thousand.
_ROWS = 1000
_RECORD = Bulk(insert(journal_records), [column.name for column in journal_records.c])
# Lower than any step.
_NOTHING = -1


def launch(connection: Connection, task_id: str, launch_id: str) -> LaunchRow | None:
    """Return a launch."""
    row = connection.execute(_ONE, {"task_id": task_id, "launch": launch_id}).first()
    return LaunchRow(*row) if row else None


def launches_of(connection: Connection, task_id: str) -> list[LaunchRow]:
    """Return the launches of a task, oldest first."""
    return [LaunchRow(*row) for row in connection.execute(_OF_TASK, {"task_id": task_id})]


def launches_of_all(connection: Connection, task_ids: Sequence[str]) -> dict[str, list[LaunchRow]]:
    """Return the launches of tasks, oldest first."""
    found: dict[str, list[LaunchRow]] = {}
    if task_ids:
        for row in connection.execute(_OF_TASKS.order_by(launches.c.number), {"ids": list(task_ids)}):
            found.setdefault(row.task_id, []).append(LaunchRow(*row))
    return found


def newest_number(connection: Connection, task_id: str) -> int:
    """Return the number of a task's newest launch; 0 if it has none."""
    return connection.execute(select(func.max(launches.c.number)).where(launches.c.task_id == task_id)).scalar() or 0


def add_launch(connection: Connection, *, task_id: str, launch_id: str, attempt_id: str, at: float) -> LaunchRow:
    """Store a new launch; the newest has the highest number."""
    last = newest_number(connection, task_id)
    row = LaunchRow(task_id, launch_id, last + 1, attempt_id, None, None, None, 0, None, at)
    connection.execute(
        insert(launches).values(
            task_id=task_id, launch=launch_id, number=row.number, attempt_id=attempt_id, cursor=0, started_at=at
        )
    )
    return row


def advance(connection: Connection, row: LaunchRow, *, cursor: int, progress: str | None) -> None:
    """Store a launch's journal cursor, and its newest progress if there is one."""
    values: dict[str, Any] = {"cursor": cursor}
    if progress is not None:
        values["progress"] = progress
    connection.execute(
        update(launches).where(launches.c.task_id == row.task_id, launches.c.launch == row.launch).values(values)
    )


def add_records(connection: Connection, points: Sequence[Sequence[Any]], records: Sequence[Sequence[Any]]) -> None:
    """Store metric points and other records; each is a row in the order of its table's columns."""
    _POINT.run(connection, points)
    _RECORD.run(connection, records)


def curve_of(series: str, names: Collection[str]) -> int:
    """Return a number that identifies points with the same value names in the same series."""
    text = "\0".join([series, *sorted(names)])
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest(), signed=True)


def thin(connection: Connection, launch: LaunchRow, *, before_seq: int, apart: int) -> int:
    """Delete older points of a launch: of each curve, the first point of each stretch of the journal stays.

    Points with the same value names in the same series form a curve, so that rarely measured values are thinned
    separately from frequent ones. Values are not read: there may be very many.
    """
    at = metric_points.c
    old = (at.task_id == launch.task_id) & (at.launch_number == launch.number) & (at.seq < before_seq)
    last: dict[int, int] = {}
    surplus = []
    for seq, curve in connection.execute(select(at.seq, at.curve).where(old).order_by(at.seq)):
        stretch = seq // apart
        if last.get(curve) == stretch:
            surplus.append(seq)
        last[curve] = stretch
    each = POINT_CHARACTERS + func.length(at.series) + func.length(at.values_json)
    characters = 0
    for start in range(0, len(surplus), _AT_ONCE):
        some = old & at.seq.in_(surplus[start : start + _AT_ONCE])
        characters += int(connection.execute(select(func.sum(each)).where(some)).scalar() or 0)
        connection.execute(delete(metric_points).where(some))
    return characters


def records_of(connection: Connection, task_id: str, kind: str) -> list[tuple[int, str]]:
    """Return launch number and JSON of a task's records of one type, oldest first."""
    query = (
        select(journal_records.c.launch_number, journal_records.c.body)
        .where(journal_records.c.task_id == task_id, journal_records.c.type == kind)
        .order_by(journal_records.c.launch_number, journal_records.c.seq)
    )
    return [(number, body) for number, body in connection.execute(query)]


def first_records(connection: Connection, task_id: str, numbers: Sequence[int]) -> dict[int, str]:
    """Return the first record of launches, as JSON by number: it names the checkpoint that the launch resumed."""
    at = journal_records.c
    found: dict[int, str] = {}
    for start in range(0, len(numbers), _AT_ONCE):
        query = select(at.launch_number, at.body).where(
            at.task_id == task_id,
            at.launch_number.in_(numbers[start : start + _AT_ONCE]),
            at.seq == 0,
            at.type == "launch",
        )
        found |= {number: body for number, body in connection.execute(query)}
    return found


def newest_values(connection: Connection, task_id: str, *, series: str, limit: int) -> list[tuple[int, str]]:
    """Return step and values (JSON) of the last reported points, newest first."""
    at = metric_points.c
    query = select(at.step, at.values_json).where(at.task_id == task_id, at.series == series)
    newest = query.order_by(at.launch_number.desc(), at.seq.desc()).limit(limit)
    return [(step, text) for step, text in connection.execute(newest)]


def points_of_launch(
    connection: Connection, task_id: str, number: int, *, from_seq: int, limit: int
) -> list[tuple[int, str, int, float | None, float, str]]:
    """Return sequence number, series, step, epoch, time and values (JSON) of a launch's points, as logged."""
    at = metric_points.c
    query = (
        select(at.seq, at.series, at.step, at.epoch, at.at, at.values_json)
        .where(at.task_id == task_id, at.launch_number == number, at.seq >= from_seq)
        .order_by(at.seq)
        .limit(limit)
    )
    return [(row.seq, row.series, row.step, row.epoch, row.at, row.values_json) for row in connection.execute(query)]


def points_of(connection: Connection, task_id: str, records: Sequence[tuple[int, int]]) -> list[PointRow]:
    """Return points by launch and sequence number, in that order; missing ones are omitted."""
    at = metric_points.c
    found: dict[tuple[int, int], PointRow] = {}
    for number in sorted({launch for launch, _ in records}):
        seqs = [seq for launch, seq in records if launch == number]
        for start in range(0, len(seqs), _AT_ONCE):
            query = select(at.seq, at.step, at.epoch, at.at, at.window_from, at.window_to, at.values_json).where(
                at.task_id == task_id, at.launch_number == number, at.seq.in_(seqs[start : start + _AT_ONCE])
            )
            found |= {(number, row[0]): PointRow(*row[1:]) for row in connection.execute(query)}
    return [found[record] for record in records if record in found]


def visible_points(
    connection: Connection,
    task_id: str,
    *,
    series: str,
    after_step: int | None = None,
    to_step: int | None = None,
    name: str | None = None,
) -> Iterator[PointRow]:
    """Yield the points that no later launch superseded.

    They are in step order; at the same step, points of older launches come first.
    """
    at = metric_points.c
    query = (
        select(at.step, at.epoch, at.at, at.window_from, at.window_to, at.values_json)
        .join(launches, (launches.c.task_id == at.task_id) & (launches.c.number == at.launch_number))
        .where(
            at.task_id == task_id,
            at.series == series,
            or_(launches.c.hidden_after.is_(None), at.step <= launches.c.hidden_after),
        )
        .order_by(at.step, at.launch_number, at.seq)
    )
    if after_step is not None:
        query = query.where(at.step > after_step)
    if to_step is not None:
        query = query.where(at.step <= to_step)
    if name is not None:
        query = query.where(at.values_json.contains(f'"{name}":', autoescape=True))
    for row in connection.execute(query, execution_options={"yield_per": _ROWS}):
        yield PointRow(*row)


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the journals of deleted tasks."""
    for table in (metric_points, journal_records, launches, journal_room, reported_predictions):
        connection.execute(delete(table).where(table.c.task_id.in_(list(task_ids))))


def resume_from(connection: Connection, row: LaunchRow, *, from_step: int, checkpoint: str | None) -> None:
    """Store where a launch started, and hide points that do not lead to it.

    Args:
        checkpoint: Digest of the checkpoint; `None` if it started from scratch, or does not report it.
    """
    where = launches.c.task_id == row.task_id
    connection.execute(
        update(launches)
        .where(where, launches.c.launch == row.launch)
        .values(from_step=from_step, checkpoint=checkpoint)
    )
    every = [each for each in launches_of(connection, row.task_id) if each.number <= row.number]
    if len(every) == 1:
        return
    shown = _shown(every, _parents(connection, every))
    changed = {each.number: shown[each.number] for each in every[:-1] if each.hidden_after != shown[each.number]}
    if changed:
        connection.execute(
            update(launches)
            .where(where, launches.c.number.in_(list(changed)))
            .values(hidden_after=case(changed, value=launches.c.number))
        )


def _parents(connection: Connection, every: Sequence[LaunchRow]) -> dict[int, int]:
    """Return the number of the launch that each launch resumed from, as far as reported."""
    numbers = {each.launch: each.number for each in every}
    found = {}
    for number, body in first_records(connection, every[0].task_id, list(numbers.values())).items():
        parent = numbers.get(orjson.loads(body).get("parent"))
        if parent is not None and parent < number:
            found[number] = parent
    return found


def _shown(every: Sequence[LaunchRow], parents: Mapping[int, int]) -> dict[int, int | None]:
    """Return the last visible step of each launch, seen from the newest; `None` shows all.

    A launch that does not report the origin of its checkpoint continues the launch before it.
    """
    index_of = {each.number: index for index, each in enumerate(every)}
    shown: dict[int, int | None] = dict.fromkeys(index_of, _NOTHING)
    index, limit = len(every) - 1, None
    while True:
        child = every[index]
        shown[child.number] = limit
        if child.from_step is not None:
            limit = child.from_step if limit is None else min(limit, child.from_step)
        if index == 0:
            return shown
        index = index_of[parents[child.number]] if child.number in parents else index - 1


class JournalTotalsRow(NamedTuple):
    """Totals of a task's stored journals; `told` and `series` are lists of names as JSON.

    `summary`: JSON of the latest and best metrics and the loss curve, for lists; null before the first point.
    """

    task_id: str
    records: int = 0
    characters: int = 0
    point_characters: int = 0
    told: str = "[]"
    series: str = "[]"
    summary: str | None = None


_TOTALS: Final = select(journal_room).where(journal_room.c.task_id == bindparam("task_id"))
_NEW_TOTALS: Final = Bulk(insert(journal_room), JournalTotalsRow._fields)
_SET_TOTALS: Final = Bulk(
    update(journal_room)
    .where(journal_room.c.task_id == bindparam("b_task_id"))
    .values({name: bindparam(name) for name in JournalTotalsRow._fields[1:]}),
    ["b_task_id", *JournalTotalsRow._fields[1:]],
)


def totals(connection: Connection, task_id: str) -> JournalTotalsRow | None:
    """Return the totals of a task; `None` before its first record."""
    row = connection.execute(_TOTALS, {"task_id": task_id}).first()
    return JournalTotalsRow(*row) if row else None


def summaries(connection: Connection, task_ids: Sequence[str]) -> dict[str, str]:
    """Return the summaries of tasks, as JSON by id; tasks without points are omitted."""
    if not task_ids:
        return {}
    query = select(journal_room.c.task_id, journal_room.c.summary).where(
        journal_room.c.task_id.in_(list(task_ids)), journal_room.c.summary.is_not(None)
    )
    return {task_id: text for task_id, text in connection.execute(query)}


def put_totals(connection: Connection, row: JournalTotalsRow, *, new: bool) -> None:
    """Store the totals of a task."""
    (_NEW_TOTALS if new else _SET_TOTALS).run(connection, [row])
