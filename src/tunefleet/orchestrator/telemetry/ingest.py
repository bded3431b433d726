"""Journal ingestion.

One cursor for each launch is stored with the records: duplicates are dropped, gaps are refused. Unreadable records are
kept as text. Records are plain dictionaries here: there may be tens of thousands per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, TypeGuard

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import events, journal, tasks
from tunefleet.db.rows import LaunchRow
from tunefleet.errors import InputError, OffsetConflict
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.access.api_keys import refuse_ended
from tunefleet.orchestrator.access.permissions import AttemptActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.telemetry import journal_limits
from tunefleet.orchestrator.telemetry.journal_limits import JournalUsage
from tunefleet.orchestrator.views import LAST_SECOND, read_progress
from tunefleet.schemas.worker_link import Cursor, JournalBatch

# Longer batches are parsed in a thread, so that they do not block the event loop.
_MANY_LINES: Final = 200
_MANY_CHARACTERS: Final = 1 << 16
_KIND_CHARACTERS: Final = 64
# The curve number of points with more names is not cached.
_MANY_NAMES: Final = 64
_TOO_GREAT: Final = 1 << 63
# The series of a job's resource usage.
SYSTEM: Final = "system"
_USAGE_NAMES: Final = ("rss_bytes", "gpu_bytes", "gpu_allocated_bytes", "tokens_per_s", "step_time_s")
# Progress is reported every second; charts keep the first record of each interval of this length.
_SAMPLE_S: Final = 15.0
# Allowed types of a value; some trainers log a null.
_VALUES: Final = frozenset({int, float, bool, str, type(None)})
_EVENT_KINDS: Final = {"event": "task.message", "checkpoint": "checkpoint.saved"}


@dataclass(slots=True)
class _Parsed:
    """Records of a batch as rows; task and launch number are not known yet."""

    points: list[tuple[Any, ...]] = field(default_factory=list)
    records: list[tuple[Any, ...]] = field(default_factory=list)
    reported: list[tuple[int, str, float | None, dict[str, Any]]] = field(default_factory=list)
    launch: dict[str, Any] | None = None
    progress: tuple[int, str] | None = None
    samples: list[tuple[int, int, float, int, str]] = field(default_factory=list)
    oldest_at: float | None = None
    """Time of the first record that has one, by its host's clock."""
    narrowed: bool = False
    """Whether values of a point were dropped."""


async def ingest(core: ServerContext, attempt: AttemptActor, batch: JournalBatch) -> Cursor:
    """Store records of a launch and return its journal cursor.

    Raises:
        OffsetConflict: If records before the batch are missing; it carries the cursor to continue from.
        ConflictError: If the attempt has ended and the batch has new records.
        InputError: If the launch name is too long.
    """
    if len(batch.launch) > journal_limits.NAME_CHARACTERS:
        raise InputError(f"The launch name has more than {journal_limits.NAME_CHARACTERS} characters.")
    parse = partial(_parse, batch.lines, batch.from_seq)
    is_long = len(batch.lines) > _MANY_LINES or sum(map(len, batch.lines)) > _MANY_CHARACTERS
    parsed = await asyncio.to_thread(parse) if is_long else parse()
    now = core.clock.wall()
    keep = core.settings.series_points
    cursor = await core.write(partial(_store, attempt=attempt, batch=batch, parsed=parsed, now=now, keep=keep))
    if core.meters is not None and batch.lines:
        core.meters.records.inc(len(batch.lines))
        core.meters.batch.observe(len(batch.lines))
        if parsed.oldest_at is not None:
            core.meters.lag_s.observe(max(0.0, core.clock.wall() - parsed.oldest_at))
    return Cursor(cursor=cursor)


def _parse(lines: Sequence[str], from_seq: int) -> _Parsed:
    parsed = _Parsed()
    for seq, line in enumerate(lines, from_seq):
        try:
            record = orjson.loads(line)
            if parsed.oldest_at is None and _is_time(record.get("at")):
                parsed.oldest_at = record["at"]
            _sort(parsed, seq, line, record)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError):
            parsed.records.append((seq, "unreadable", line))
    return parsed


def _sort(parsed: _Parsed, seq: int, line: str, record: dict[str, Any]) -> None:
    kind = record["type"]
    if kind == "metric":
        window = record.get("window") or (None, None)
        series, values = str(record.get("series", "train")), _values(parsed, record["values"])
        parsed.points.append(
            (
                seq,
                series,
                _integer(record["step"]),
                None if record.get("epoch") is None else float(record["epoch"]),
                _time(record["at"]),
                None if window[0] is None else _integer(window[0]),
                None if window[1] is None else _integer(window[1]),
                _curve(series, values),
                orjson.dumps(values).decode(),
            )
        )
    elif kind == "progress":
        _refuse_longer(line, journal_limits.PROGRESS_CHARACTERS)
        _take_sample(parsed, seq, record)
        _check_progress(record)
        parsed.progress = (seq, line)
    else:
        _refuse_longer(str(kind), _KIND_CHARACTERS)
        if kind == "launch" and seq == 0:
            # Kept even over the limits: it decides which points of earlier launches are superseded.
            _refuse_longer(line, journal_limits.LAUNCH_CHARACTERS)
            checkpoint = record.get("checkpoint")
            parsed.launch = {
                "from_step": _integer(record.get("from_step", 0)),
                "checkpoint": None if checkpoint is None else str(checkpoint),
            }
        if kind in _EVENT_KINDS:
            at = record.get("at")
            parsed.reported.append((seq, kind, float(at) if _is_time(at) else None, record))
        parsed.records.append((seq, str(kind), line))


def _take_sample(parsed: _Parsed, seq: int, record: dict[str, Any]) -> None:
    """Take the resource usage from a progress record, if it has any."""
    at, step = record.get("at"), record.get("step", 0)
    values = {name: value for name in _USAGE_NAMES if isinstance(value := record.get(name), int | float)}
    if values and _is_time(at) and isinstance(step, int) and abs(step) < _TOO_GREAT:
        parsed.samples.append((seq, step, float(at), _curve(SYSTEM, values), orjson.dumps(values).decode()))


def _check_progress(record: dict[str, Any]) -> None:
    """Raise ValueError for a progress record that the API could not return."""
    view = read_progress(record)
    for number in (view.step, view.max_steps, view.rss_bytes or 0, view.gpu_bytes or 0):
        _integer(number)


def _refuse_longer(text: str, most: int) -> None:
    """Raise ValueError for a record that is too long."""
    if len(text) > most:
        raise ValueError(len(text))


def _values(parsed: _Parsed, given: Any) -> dict[str, Any]:
    """Return the values of a point within the limits; raise TypeError for a list or a mapping."""
    values: dict[str, Any] = dict(given)
    types = set(map(type, values.values()))
    if not types <= _VALUES:
        raise TypeError(values)
    longest = max(map(len, values), default=0)
    if str in types:
        longest = max(longest, *(len(value) for value in values.values() if isinstance(value, str)))
    if longest <= journal_limits.NAME_CHARACTERS and len(values) <= journal_limits.VALUES:
        return values
    parsed.narrowed = True
    fit = ((name, value) for name, value in values.items() if _fits(name) and _fits(value))
    return dict(islice(fit, journal_limits.VALUES))


def _fits(value: object) -> bool:
    return not isinstance(value, str) or len(value) <= journal_limits.NAME_CHARACTERS


def _curve(series: str, values: dict[str, Any]) -> int:
    return journal.curve_of(series, values) if len(values) > _MANY_NAMES else _known_curve(series, tuple(values))


@lru_cache(maxsize=256)
def _known_curve(series: str, names: tuple[str, ...]) -> int:
    return journal.curve_of(series, names)


def _is_time(at: object) -> TypeGuard[float]:
    return isinstance(at, int | float) and 0 <= at < LAST_SECOND


def _time(value: Any) -> float:
    """Return a plausible time; raise ValueError for any other."""
    at = float(value)
    if not _is_time(at):
        raise ValueError(at)
    return at


def _integer(value: Any) -> int:
    """Return an integer that the store can hold; raise ValueError for any other."""
    number = int(value)
    if abs(number) >= _TOO_GREAT:
        raise ValueError(number)
    return number


def _store(
    connection: Connection,
    *,
    attempt: AttemptActor,
    batch: JournalBatch,
    parsed: _Parsed,
    now: float,
    keep: int,
) -> int:
    launch = journal.launch(connection, attempt.task_id, batch.launch)
    stored = launch.cursor if launch else 0
    end = batch.from_seq + len(batch.lines)
    if batch.from_seq > stored:
        raise OffsetConflict(
            f"The journal of {batch.launch} continues at {stored}, not at {batch.from_seq}.", cursor=stored
        )
    if end <= stored:
        return stored
    refuse_ended(connection, attempt)
    usage = JournalUsage.of(connection, attempt.task_id)
    if launch is None and journal.newest_number(connection, attempt.task_id) >= journal_limits.LAUNCHES:
        # Acknowledge everything: the worker cannot finish the attempt before the end of its journal is stored.
        usage.dropped.add("journal.launches")
        usage.store(connection, keep, now)
        return end
    if launch is None:
        launch = journal.add_launch(
            connection, task_id=attempt.task_id, launch_id=batch.launch, attempt_id=attempt.attempt_id, at=now
        )
    _store_new(connection, launch, parsed, stored, end, usage, keep)
    usage.give_back(journal_limits.thin_points(connection, launch, end, keep, now))
    usage.store(connection, keep, now)
    _append_events(connection, attempt, parsed, stored, now)
    wake(connection, f"task:{attempt.task_id}")
    return end


def _store_new(
    connection: Connection, launch: LaunchRow, parsed: _Parsed, stored: int, end: int, usage: JournalUsage, keep: int
) -> None:
    points = [point for point in parsed.points if point[0] >= stored]
    points += _sampled(launch, [each for each in parsed.samples if each[0] >= stored])
    points = usage.take_points(points, keep)
    if parsed.narrowed:
        usage.dropped.add("metrics.narrowed")
    new = [record for record in parsed.records if record[0] >= stored]
    first = [record for record in new if parsed.launch is not None and record[0] == 0]
    records = usage.take_records(new[len(first) :])
    if len(first) + len(records) < len(new):
        left_out = {record[0] for record in new[len(first) + len(records) :]}
        parsed.reported = [reported for reported in parsed.reported if reported[0] not in left_out]
    mine = launch.task_id, launch.number
    journal.add_records(connection, [(*mine, *each) for each in points], [(*mine, *each) for each in first + records])
    if parsed.launch is not None and stored == 0:
        journal.resume_from(connection, launch, **parsed.launch)
    usage.summarize(connection, points, again=stored == 0 and launch.number > 1)
    fresh = parsed.progress is not None and parsed.progress[0] >= stored
    progress = parsed.progress[1] if fresh and parsed.progress is not None else None
    journal.advance(connection, launch, cursor=end, progress=progress)


def _sampled(launch: LaunchRow, samples: Sequence[tuple[int, int, float, int, str]]) -> list[tuple[Any, ...]]:
    """Return points for the first sample of each interval; `launch` has the progress before this batch."""
    before = orjson.loads(launch.progress).get("at") if launch.progress else None
    slot = before // _SAMPLE_S if isinstance(before, int | float) else None
    rows: list[tuple[Any, ...]] = []
    for seq, step, at, curve, values in samples:
        if at // _SAMPLE_S != slot:
            slot = at // _SAMPLE_S
            rows.append((seq, SYSTEM, step, None, at, None, None, curve, values))
    return rows


def _append_events(connection: Connection, attempt: AttemptActor, parsed: _Parsed, stored: int, now: float) -> None:
    new = [(kind, at, record) for seq, kind, at, record in parsed.reported if seq >= stored]
    if not new:
        return
    task = tasks.by_ids(connection, [attempt.task_id])[attempt.task_id]
    events.append(
        connection,
        [
            events.of_task(task, _EVENT_KINDS[kind], now if at is None else at, _data(record))
            for kind, at, record in new
        ],
    )


def _data(record: dict[str, Any]) -> dict[str, Any]:
    data = {name: value for name, value in record.items() if name not in {"seq", "at", "type"}}
    message = data.get("message")
    return {**data, "message": scrub(message)} if isinstance(message, str) else data
