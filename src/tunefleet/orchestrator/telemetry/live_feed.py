"""The event feed, and the live feed of the web UI: points of followed tasks, progress, loads of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.db import Connection
from tunefleet.db.repositories import events, journal, task_list
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_read, may_see_worker
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.tasks.listing import newest_loss
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.tasks.views import progress_view
from tunefleet.orchestrator.telemetry.series import values_of
from tunefleet.orchestrator.views import bounded_limit, event_view, to_datetime
from tunefleet.schemas.api import EventView
from tunefleet.schemas.live import LivePoint, LivePoints, LiveResume, TaskProgress, WorkerLoad
from tunefleet.schemas.worker_link import Load

# Maximum number of tasks in a comparison.
MAX_FOLLOWED = 8
# Points per message.
_POINTS = 2000
_RUNNING = 500
# Maximum age of the shared progress: below the second after which streams poll again.
FRESH_S = 0.9
# Number of a launch → the sequence number in its journal up to which it is known.
Cursors = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in the live stream; `str` and `read` convert it to text and back."""

    event_id: int
    points: Mapping[str, Cursors] = field(default_factory=dict)

    def __str__(self) -> str:
        tasks = (
            f"{task_id}={','.join(f'{launch}.{seq}' for launch, seq in sorted(cursors.items()))}"
            for task_id, cursors in sorted(self.points.items())
        )
        return ";".join([str(self.event_id), *tasks])

    @classmethod
    def read(cls, text: str) -> StreamPosition:
        """Parse a position.

        Raises:
            InputError: If the text is not a position.
        """
        first, *rest = text.split(";")
        points: dict[str, Cursors] = {}
        try:
            for each in rest:
                task_id, _, cursors = each.partition("=")
                pairs = (pair.partition(".") for pair in cursors.split(",") if pair)
                points[task_id] = {_number(launch): _number(seq) for launch, _, seq in pairs}
            return cls(_number(first), points)
        except ValueError:
            raise InputError(
                f"{text[:40]!r} is not a position in this stream.", hint="Send the id of the last message, or none."
            ) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(text)
    return int(text)


async def followed(
    core: ServerContext, actor: Actor, task_ids: Sequence[str], known: Mapping[str, Cursors]
) -> tuple[dict[str, Cursors], tuple[str, ...]]:
    """Return the cursors of tasks, as known or else at their end, and the ids that match no task.

    Raises:
        InputError: If there are too many.
    """
    may_read(actor)
    if len(task_ids) > MAX_FOLLOWED:
        raise InputError(f"Cannot follow {len(task_ids)} runs at the same time.", hint=f"The limit is {MAX_FOLLOWED}.")

    def operation(connection: Connection) -> tuple[dict[str, Cursors], tuple[str, ...]]:
        places: dict[str, Cursors] = {}
        unknown: list[str] = []
        for task_id in task_ids:
            try:
                id_ = find(connection, actor, task_id).id
            except (NotFoundError, ConflictError):  # ConflictError: an ambiguous prefix
                # Not raised: a task that was removed while it is shown must not end the stream.
                unknown.append(task_id)
            else:
                places[id_] = known[id_] if id_ in known else _end(connection, id_)
        return places, tuple(unknown)

    return await core.read(operation)


def _end(connection: Connection, task_id: str) -> Cursors:
    return {row.number: row.cursor for row in journal.launches_of(connection, task_id)}


async def points(core: ServerContext, task_id: str, known: Cursors) -> tuple[LivePoints, Cursors, bool]:
    """Return the points of a task after its cursors, the new cursors, and whether there are more already."""

    def operation(connection: Connection) -> tuple[LivePoints, Cursors, bool]:
        resumed: list[LiveResume] = []
        found: list[LivePoint] = []
        reached = dict(known)
        for launch in journal.launches_of(connection, task_id):
            start, room = known.get(launch.number, 0), _POINTS - len(found)
            if launch.cursor <= start:
                continue
            if room <= 0:
                return LivePoints(task_id=task_id, resumed=tuple(resumed), points=tuple(found)), reached, True
            if start == 0 and launch.number > 1 and launch.from_step is not None:
                resumed.append(LiveResume(launch=launch.number, from_step=launch.from_step))
            rows = journal.points_of_launch(connection, task_id, launch.number, from_seq=start, limit=room)
            for seq, series, step, epoch, at, text in rows:
                found.append(
                    LivePoint(
                        launch=launch.number, series=series, step=step, epoch=epoch, at=to_datetime(at),
                        values=values_of(text),
                    )
                )  # fmt: skip
                reached[launch.number] = seq + 1
            if len(rows) < room:
                reached[launch.number] = launch.cursor
        return LivePoints(task_id=task_id, resumed=tuple(resumed), points=tuple(found)), reached, False

    return await core.read(operation)


@dataclass(slots=True)
class RunningTasks:
    """Progress of a project's running tasks; all streams share one query per second."""

    _known: Mapping[str, TaskProgress] = field(default_factory=dict)
    _at: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, core: ServerContext, project: str) -> Mapping[str, TaskProgress]:
        """Return the progress, queried again if it is older than `FRESH_S`."""
        async with self._lock:
            now = core.clock.monotonic()
            if self._at is None or now - self._at >= FRESH_S:
                self._known, self._at = await _progress(core, project, self._known), now
            return self._known


class Watched(dict[str, RunningTasks]):
    """Project → progress of its running tasks."""


async def progress(core: ServerContext, actor: Actor) -> Mapping[str, TaskProgress]:
    """Return the progress of running tasks; an unchanged one is the same object as before."""
    may_read(actor)
    watched = core.state(Watched)
    return await watched.setdefault(actor.project, RunningTasks()).get(core, actor.project)


async def _progress(core: ServerContext, project: str, sent: Mapping[str, TaskProgress]) -> dict[str, TaskProgress]:
    def operation(connection: Connection) -> dict[str, TaskProgress]:
        rows = task_list.newest_of(connection, project, "running", _RUNNING)
        launches = journal.launches_of_all(connection, [row.id for row in rows])
        now: dict[str, TaskProgress] = {}
        for row in rows:
            view = progress_view(launches.get(row.id, ()))
            if view is None:
                continue
            before = sent.get(row.id)
            now[row.id] = (
                before
                if before is not None and (before.progress, before.worker_id) == (view, row.worker_id)
                else TaskProgress(
                    task_id=row.id, workflow_id=row.workflow_id, worker_id=row.worker_id, progress=view,
                    loss=newest_loss(connection, row.id),
                )
            )  # fmt: skip
        return now

    return await core.read(operation)


def loads(core: ServerContext, actor: Actor, sent: dict[str, Load]) -> tuple[WorkerLoad, ...]:
    """Return the loads that workers have reported since the last call; `sent` is updated."""
    new = []
    for id_, presence in core.state(Fleet).presences.items():
        if may_see_worker(actor, presence.project) and presence.load is not None and presence.load is not sent.get(id_):
            sent[id_] = presence.load
            new.append(WorkerLoad(worker_id=id_, at=to_datetime(presence.load_at), load=presence.load))
    return tuple(new)


async def events_after(
    core: ServerContext,
    actor: Actor,
    event_id: int,
    *,
    limit: int = 100,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Sequence[str] | None = None,
) -> list[EventView]:
    """Return events after an id, oldest first; the topic `events` is notified of new ones.

    Args:
        event_id: The last event that the caller has; 0 for none.
    """
    may_read(actor)
    rows = await core.read(
        lambda connection: events.after(
            connection,
            event_id,
            project=actor.project,
            limit=bounded_limit(limit),
            task_id=task_id,
            workflow_id=workflow_id,
            kinds=kinds,
        )
    )
    return [event_view(row) for row in rows]


async def last_event_id(core: ServerContext, actor: Actor) -> int:
    """Return the id of the newest event, to follow the feed from now on."""
    may_read(actor)
    return await core.read(events.last_id)
