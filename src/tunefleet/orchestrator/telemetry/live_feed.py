"""What a page is told as it happens: new points of followed tasks, where running ones stand, workers' loads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.db import Connection
from tunefleet.db.repositories import journal, task_list
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.tasks.listing import newest_loss
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.telemetry.series import values_of
from tunefleet.orchestrator.views import moment, progress_view
from tunefleet.orchestrator.workers.workers import visible
from tunefleet.schemas.live import LivePoint, LivePoints, LiveResume, TaskProgress, WorkerLoad
from tunefleet.schemas.worker_link import Load

# So many tasks are compared at most.
MOST_FOLLOWED = 8
# Points of one message.
_POINTS = 2000
_RUNNING = 500
FRESH_S = 0.9
"""So long it is good where running tasks stand: less than the second after which a stream looks again."""

# Number of a launch → the sequence number in its journal up to which it is known.
Cursors = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Up to where a page knows what happened; `str` and `read` turn it to a text and back."""

    event_id: int
    points: Mapping[str, Cursors] = field(default_factory=dict)

    def __str__(self) -> str:
        tasks = (
            f"{task_id}={','.join(f'{launch}.{seq}' for launch, seq in sorted(cursors.items()))}"
            for task_id, cursors in sorted(self.points.items())
        )
        return ";".join([str(self.event_id), *tasks])

    @classmethod
    def read(cls, text: str) -> Place:
        """Read a place."""
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
                f"{text[:40]!r} is no place in this stream.", hint="Send the id of the last message, or nothing."
            ) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(text)
    return int(text)


async def followed(
    core: Core, actor: Actor, task_ids: Sequence[str], known: Mapping[str, Cursors]
) -> tuple[dict[str, Cursors], tuple[str, ...]]:
    """Return where the points of tasks stand, at the place that is known or else at their end, and the ids of no task.

    One that was removed while a page showed it must not end the page's whole stream.

    Raises:
        InputError: If there are too many.
    """
    may_read(actor)
    if len(task_ids) > MOST_FOLLOWED:
        raise InputError(f"{len(task_ids)} tasks cannot be followed at once.", hint=f"{MOST_FOLLOWED} at most.")

    def operation(connection: Connection) -> tuple[dict[str, Cursors], tuple[str, ...]]:
        places: dict[str, Cursors] = {}
        unknown: list[str] = []
        for task_id in task_ids:
            try:
                id_ = find(connection, actor, task_id).id
            except (NotFoundError, ConflictError):  # ConflictError: several begin so
                unknown.append(task_id)
            else:
                places[id_] = known[id_] if id_ in known else _end(connection, id_)
        return places, tuple(unknown)

    return await core.read(operation)


def _end(connection: Connection, task_id: str) -> Cursors:
    return {row.number: row.cursor for row in journal.launches_of(connection, task_id)}


async def points(core: Core, task_id: str, known: Cursors) -> tuple[LivePoints, Cursors, bool]:
    """Return what a task has logged behind a place, the place behind that, and whether there is more already."""

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
                        launch=launch.number, series=series, step=step, epoch=epoch, at=moment(at),
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
    """Where the running tasks of a project stand; all who watch share one look a second."""

    _known: Mapping[str, TaskProgress] = field(default_factory=dict)
    _at: float | None = None
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, core: Core, project: str) -> Mapping[str, TaskProgress]:
        """Return what is known, looked up anew if it is too old."""
        async with self._looking:
            now = core.clock.monotonic()
            if self._at is None or now - self._at >= FRESH_S:
                self._known, self._at = await _progress(core, project, self._known), now
            return self._known


class Watched(dict[str, RunningTasks]):
    """By project, what of it was shown lately."""


async def progress(core: Core, actor: Actor) -> Mapping[str, TaskProgress]:
    """Return where the running tasks stand; of one that has not moved it is the same object as before."""
    may_read(actor)
    watched = core.state(Watched)
    return await watched.setdefault(actor.project, RunningTasks()).get(core, actor.project)


async def _progress(core: Core, project: str, told: Mapping[str, TaskProgress]) -> dict[str, TaskProgress]:
    def operation(connection: Connection) -> dict[str, TaskProgress]:
        rows = task_list.newest_of(connection, project, "running", _RUNNING)
        launches = journal.launches_of_all(connection, [row.id for row in rows])
        now: dict[str, TaskProgress] = {}
        for row in rows:
            view = progress_view(launches.get(row.id, ()))
            if view is None:
                continue
            before = told.get(row.id)
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


def loads(core: Core, actor: Actor, told: dict[str, Load]) -> tuple[WorkerLoad, ...]:
    """Return the loads that workers have told since; `told` is brought up to date."""
    new = []
    for id_, presence in core.fleet.presences.items():
        if visible(actor, presence.project) and presence.load is not None and presence.load is not told.get(id_):
            told[id_] = presence.load
            new.append(WorkerLoad(worker_id=id_, at=moment(presence.load_at), load=presence.load))
    return tuple(new)
