"""Task lists for users: search, filters, order, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Float,
    Select,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.types import UserDefinedType

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import task_tags, tasks, workflows
from tunefleet.db.tables.operations import journal_room, task_engines

_NOW: Final = bindparam("now", type_=Float)
_SORTS: Final[dict[str, ColumnElement[Any]]] = {
    "name": func.coalesce(tasks.c.title, tasks.c.name),
    "kind": tasks.c.kind,
    "model": func.coalesce(tasks.c.model, ""),
    "dataset": func.coalesce(tasks.c.dataset, ""),
    "method": func.coalesce(tasks.c.method, ""),
    "status": tasks.c.status,
    "owner": tasks.c.owner,
    "worker": func.coalesce(tasks.c.worker_id, ""),
    "started": func.coalesce(tasks.c.started_at, 0.0),
    "finished": func.coalesce(tasks.c.finished_at, 0.0),
    "duration": func.coalesce(tasks.c.finished_at, _NOW) - func.coalesce(tasks.c.started_at, tasks.c.finished_at, _NOW),
}
SORTS: Final = ("created", *_SORTS)
"""Sort keys of a list, besides metrics; `created` is the order of submission."""
_GROUPS: Final = ("status", "kind", "owner", "worker_id", "model", "method")
# Beyond every metric: tasks without the metric come last in both directions.
_BEYOND: Final = 1.7e308


class _Jsonb(UserDefinedType[Any]):
    # SQLAlchemy's own JSONB would load the PostgreSQL dialect in every SQLite server.
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSONB"


class Place(NamedTuple):
    """Position after a page: sort value and `seq` of its last row, and the time at which durations were measured."""

    value: Any
    seq: int
    now: float


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """A query for tasks.

    Args:
        filters: Column, or `tag` → comma-separated values; `None` does not filter.
        sort: One of `SORTS`, or `latest.NAME` or `best.NAME` for a metric.
    """

    project: str
    words: Sequence[str] = ()
    filters: Mapping[str, str | None] = field(default_factory=dict)
    sort: str = "created"
    descending: bool = True
    now: float = 0.0


def page(
    connection: Connection, selection: TaskSelection, *, limit: int, behind: Place | None
) -> list[tuple[TaskRow, Any]]:
    """Return tasks with their sort values."""
    key = _sort_key(connection, selection)
    query = select(tasks, key.label("sort_key")).where(*_conditions(selection)).limit(limit)
    if "." in selection.sort:
        query = query.outerjoin_from(tasks, journal_room, journal_room.c.task_id == tasks.c.id)
    # Ties are sorted in the same direction, so that descending order is exactly the reverse.
    query = query.order_by(*((key.desc(), tasks.c.seq.desc()) if selection.descending else (key, tasks.c.seq)))
    if behind is not None:
        query = query.where(_behind(key, behind, descending=selection.descending))
    now = {"now": selection.now} if selection.sort == "duration" else {}
    return [(TaskRow(*row[:-1]), row[-1]) for row in connection.execute(query, now)]


def counts(connection: Connection, selection: TaskSelection) -> dict[str, dict[str, int]]:
    """Return the number of matching tasks: column, or `tag` → value → count."""
    found = {name: counts_of(connection, selection, name) for name in _GROUPS}
    tag = task_tags.c.tag
    query = select(tag, func.count()).join_from(tasks, task_tags, task_tags.c.task_seq == tasks.c.seq)
    tagged = connection.execute(query.where(*_conditions(selection)).group_by(tag).order_by(tag))
    found["tag"] = {value: int(count) for value, count in tagged}
    return found


def counts_of(connection: Connection, selection: TaskSelection, name: str) -> dict[str, int]:
    """Return the number of matching tasks by the value of one column."""
    column = tasks.c[name]
    query = select(column, func.count()).where(*_conditions(selection), column.is_not(None)).group_by(column)
    return {str(value): int(count) for value, count in connection.execute(query.order_by(column))}


def queued_by_need(connection: Connection, project: str, now: float) -> dict[str, int]:
    """Return the number of due queued tasks without a cluster engine, by requirement key."""
    served = exists().where(task_engines.c.task_seq == tasks.c.seq)
    query = select(tasks.c.requirement_key, func.count()).where(
        tasks.c.project == project, tasks.c.status == "queued", tasks.c.ready_at <= now, ~served
    )
    return {key: int(count) for key, count in connection.execute(query.group_by(tasks.c.requirement_key))}


def next_queued(connection: Connection, project: str, limit: int) -> list[TaskRow]:
    """Return the first tasks of the queue."""
    query = select(tasks).where(tasks.c.project == project, tasks.c.status == "queued")
    return _rows(connection, query.order_by(tasks.c.rank, tasks.c.seq).limit(limit))


def newest_of(connection: Connection, project: str, status: str, limit: int) -> list[TaskRow]:
    """Return the tasks that entered a status last, by end time or, if unfinished, start time."""
    at = func.coalesce(tasks.c.finished_at, tasks.c.started_at, 0.0)
    query = select(tasks).where(tasks.c.project == project, tasks.c.status == status)
    return _rows(connection, query.order_by(at.desc(), tasks.c.seq.desc()).limit(limit))


def workflow_names(connection: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """Return the names of workflows by `seq`."""
    if not seqs:
        return {}
    query = select(workflows.c.seq, workflows.c.name).where(workflows.c.seq.in_(sorted(set(seqs))))
    return {seq: name for seq, name in connection.execute(query)}


def _sort_key(connection: Connection, selection: TaskSelection) -> ColumnElement[Any]:
    group, _, name = selection.sort.partition(".")
    if not name:
        return _SORTS.get(group, tasks.c.seq)
    value = _json_number(connection, journal_room.c.summary, group, name)
    return func.coalesce(value, -_BEYOND if selection.descending else _BEYOND)


def _json_number(connection: Connection, column: Column[Any], group: str, name: str) -> ColumnElement[float | None]:
    """Return the number at `group.name` of a column with a JSON object of objects; null if it is no number.

    Args:
        name: Without quotation marks and backslashes, which SQLite's paths do not support.
    """
    if connection.dialect.name == "sqlite":
        path = f'$.{group}."{name}"'
        kind = func.json_type(column, path)
        return case((kind.in_(("integer", "real")), func.json_extract(column, path, type_=Double)))
    value = cast(column, _Jsonb())
    kind = func.jsonb_typeof(func.jsonb_extract_path(value, group, name))
    return case((kind == "number", cast(func.jsonb_extract_path_text(value, group, name), Double)))


def _rows(connection: Connection, query: Select[Any]) -> list[TaskRow]:
    return [TaskRow(*row) for row in connection.execute(query)]


def _behind(key: ColumnElement[Any], position: Place, *, descending: bool) -> ColumnElement[bool]:
    seq = tasks.c.seq
    if descending:
        return or_(key < position.value, and_(key == position.value, seq < position.seq))
    return or_(key > position.value, and_(key == position.value, seq > position.seq))


def _conditions(selection: TaskSelection) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [tasks.c.project == selection.project]
    for name, value in selection.filters.items():
        if value is not None and name == "workflow_id":
            # By number: the tasks table has no index on the workflow id.
            mine = select(workflows.c.seq).where(workflows.c.id.in_(value.split(",")))
            found.append(tasks.c.workflow_seq.in_(mine))
        elif value is not None and name == "tag":
            found.append(_tagged(task_tags.c.tag.in_(value.split(","))))
        elif value is not None:
            found.append(tasks.c[name].in_(value.split(",")))
    return found + [_has(word) for word in selection.words]


def _has(word: str) -> ColumnElement[bool]:
    columns = (
        tasks.c.id, tasks.c.name, tasks.c.title, tasks.c.kind, tasks.c.owner, tasks.c.worker_id, tasks.c.model,
        tasks.c.dataset, tasks.c.method,
    )  # fmt: skip
    named = select(workflows.c.seq).where(or_(_in(workflows.c.name, word), _in(workflows.c.id, word)))
    tagged = _tagged(_in(task_tags.c.tag, word))
    return or_(*(_in(column, word) for column in columns), tasks.c.workflow_seq.in_(named), tagged)


def _tagged(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return tasks.c.seq.in_(select(task_tags.c.task_seq).where(condition))


def _in(column: ColumnElement[Any], word: str) -> ColumnElement[bool]:
    return column.icontains(word, autoescape=True)
