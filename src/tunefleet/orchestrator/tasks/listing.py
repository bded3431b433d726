"""Task lists for the UI and CLI: search, sort, counts, and progress of running tasks."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import journal, task_list, tasks
from tunefleet.db.repositories.task_list import Place, TaskSelection
from tunefleet.db.rows import TaskRow
from tunefleet.errors import InputError
from tunefleet.orchestrator.access.permissions import Actor, may_read, may_see_worker
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.tasks import relations
from tunefleet.orchestrator.tasks.metric_summary import glance_of
from tunefleet.orchestrator.tasks.views import task_view
from tunefleet.orchestrator.views import before_cursor, bounded_limit
from tunefleet.schemas.api import Page, TaskView
from tunefleet.schemas.ui import Overview, TaskCounts

# Sort keys; `created` is the order of submission.
SORTS: Final = task_list.SORTS
# Rows of each list in the overview.
_OVERVIEW_ROWS: Final = 10
_RUNNING: Final = 100
_MAX_WORDS: Final = 8
# A metric: the name is part of a JSON path, so that it must not contain a quotation mark or a backslash.
_METRIC_KEY: Final = re.compile(r'(latest|best)\.[^"\\\x00-\x1f]{1,256}')


@dataclass(frozen=True, slots=True)
class TaskListQuery:
    """A query for a task list.

    Args:
        q: Search words.
        sort: One of `SORTS`, or `latest.NAME` or `best.NAME` of a metric, with a leading `-` for descending order;
            None: newest first.
        glance: Whether tasks come with a summary of their metrics.
        config: Whether they come with their specs.
    """

    limit: int = 50
    cursor: str | None = None
    q: str | None = None
    sort: str | None = None
    glance: bool = False
    config: bool = False
    filters: Mapping[str, str | None] = field(default_factory=dict)


async def page(core: ServerContext, actor: Actor, look: TaskListQuery) -> Page[TaskView]:
    """Return a page of tasks.

    Raises:
        InputError: If the cursor is invalid, or belongs to a list with another order.
    """
    may_read(actor)
    selection = _selection(actor, look, core.clock.wall())
    position = _position(look.cursor, selection)
    if position is not None:
        # Durations as of the first page: running tasks would change their position between pages.
        selection = TaskSelection(
            selection.project,
            selection.words,
            selection.filters,
            selection.sort,
            descending=selection.descending,
            now=position.now,
        )
    limit, snapshot = bounded_limit(look.limit), cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> Page[TaskView]:
        found = task_list.page(connection, selection, limit=limit + 1, behind=position)
        shown = found[:limit]
        more = len(found) > limit
        views = _views(connection, snapshot, [row for row, _ in shown], glance=look.glance, config=look.config)
        return Page[TaskView](items=tuple(views), next_cursor=_cursor(selection, *shown[-1]) if more else None)

    return await core.read(operation)


async def counts(core: ServerContext, actor: Actor, look: TaskListQuery) -> TaskCounts:
    """Return the number of matching tasks by status, kind, owner, worker, model, method and tag."""
    may_read(actor)
    selection = _selection(actor, look, core.clock.wall())
    found = await core.read(lambda connection: task_list.counts(connection, selection))
    return TaskCounts(
        total=sum(found["status"].values()),
        status=found["status"],
        kind=found["kind"],
        owner=found["owner"],
        worker_id=found["worker_id"],
        model=found["model"],
        method=found["method"],
        tag=found["tag"],
    )


async def overview(core: ServerContext, actor: Actor) -> Overview:
    """Return the overview: counts, running tasks, the head of the queue, recent failures."""
    may_read(actor)
    snapshot, project = cluster_state.fleet_snapshot(core), actor.project

    def operation(connection: Connection) -> Overview:
        by_status = task_list.counts_of(connection, TaskSelection(project), "status")
        running = task_list.newest_of(connection, project, "running", _RUNNING)
        queue = task_list.next_queued(connection, project, _OVERVIEW_ROWS)
        failed = task_list.newest_of(connection, project, "failed", _OVERVIEW_ROWS)
        worker_counts: dict[str, int] = {}
        for row in worker_rows.all_rows(connection):
            if not may_see_worker(actor, row.project):
                continue
            answers = row.status != "online" or row.id in snapshot.limits
            status = row.status if answers else "unreachable"
            worker_counts[status] = worker_counts.get(status, 0) + 1
        return Overview(
            tasks=by_status,
            workers=worker_counts,
            running=tuple(_views(connection, snapshot, running, glance=True)),
            queue=tuple(_views(connection, snapshot, queue, glance=False)),
            failed=tuple(_views(connection, snapshot, failed, glance=False)),
        )

    return await core.read(operation)


def _views(
    connection: Connection, snapshot: FleetSnapshot, rows: Sequence[TaskRow], *, glance: bool, config: bool = False
) -> list[TaskView]:
    why = cluster_state.reasons(connection, snapshot, rows)
    live = [row.id for row in rows if row.status == "running"]
    launches = journal.launches_of_all(connection, live)
    about = relations.of(connection, rows)
    documents = tasks.documents(connection, [row.seq for row in rows]) if config else {}
    seen = journal.summaries(connection, [row.id for row in rows]) if glance else {}
    return [
        task_view(
            row,
            why=why.get(row.id),
            launches=launches.get(row.id, ()),
            related=about,
            glance=glance_of(seen[row.id]) if row.id in seen else None,
            config=documents.get(row.seq),
        )
        for row in rows
    ]


def newest_loss(connection: Connection, task_id: str) -> tuple[int, float] | None:
    """Return step and value of the newest loss, if one of the last three points has one."""
    for step, text in journal.newest_values(connection, task_id, series="train", limit=3):
        loss = orjson.loads(text).get("loss")
        if isinstance(loss, int | float):
            return step, float(loss)
    return None


def _selection(actor: Actor, look: TaskListQuery, now: float) -> TaskSelection:
    name = (look.sort or "-created").removeprefix("-")
    if name not in SORTS and not _METRIC_KEY.fullmatch(name):
        known = f"{', '.join(SORTS)}, latest.METRIC, best.METRIC"
        raise InputError(f"Tasks cannot be sorted by {name[:40]!r}.", hint=f"Sort keys: {known}.")
    words = (look.q or "").split()
    if len(words) > _MAX_WORDS:
        raise InputError(f"The search has more than {_MAX_WORDS} words.")
    return TaskSelection(
        actor.project, words, look.filters, name, descending=(look.sort or "-").startswith("-"), now=now
    )


def _cursor(selection: TaskSelection, row: TaskRow, value: Any) -> str:
    if selection.sort == "created":
        return str(row.seq)
    fields = orjson.dumps([selection.sort, selection.descending, value, row.seq, selection.now])
    return base64.urlsafe_b64encode(fields).decode().rstrip("=")


def _position(cursor: str | None, selection: TaskSelection) -> Place | None:
    if cursor is None:
        return None
    if selection.sort == "created":
        seq = before_cursor(cursor)
        return None if seq is None else Place(seq, seq, selection.now)
    try:
        fields = orjson.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
        sort, descending, value, seq, now = fields
    except (binascii.Error, orjson.JSONDecodeError, UnicodeEncodeError, ValueError, TypeError):
        raise _bad_cursor(cursor) from None
    known = isinstance(value, str | float | int) and isinstance(seq, int) and isinstance(now, float)
    if not known or (sort, descending) != (selection.sort, selection.descending):
        raise _bad_cursor(cursor)
    return Place(value, seq, now)


def _bad_cursor(cursor: str) -> InputError:
    return InputError(
        f"{cursor[:40]!r} is not a cursor of this list.",
        hint="Use `next_cursor` of the previous page with the same `sort`.",
    )
