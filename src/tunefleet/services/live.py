"""What a page is told as it happens: new points of followed tasks, where running ones stand, workers' loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from tunefleet.errors import InputError
from tunefleet.services.core import Core
from tunefleet.services.identity import Actor, may_read
from tunefleet.services.listing import newest_loss
from tunefleet.services.tasks import find
from tunefleet.services.views import moment, progress_view
from tunefleet.store import Connection, journal, task_list
from tunefleet.wire.link import Load
from tunefleet.wire.live import LivePoint, LivePoints, LiveResume, TaskProgress, WorkerLoad

MOST_FOLLOWED = 8
"""So many tasks are compared at most."""
_POINTS = 2000
"""Points of one message."""
_RUNNING = 500

Cursors = Mapping[int, int]
"""Number of a launch → the sequence number in its journal up to which it is known."""


@dataclass(frozen=True, slots=True)
class Place:
    """Up to where a page knows what happened; `str` and `read` turn it to a text and back.

    Args:
        event_id: The last event.
        points: Task → where its points stand.
    """

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
        """Read a place.

        Raises:
            InputError: If it is none of ours.
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
                f"{text[:40]!r} is no place in this stream.", hint="Send the id of the last message, or nothing."
            ) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(text)
    return int(text)


async def followed(
    core: Core, actor: Actor, task_ids: Sequence[str], known: Mapping[str, Cursors]
) -> dict[str, Cursors]:
    """Return where the points of tasks stand: at the place that is known, else at their end.

    Raises:
        NotFoundError: If there is no such task.
        InputError: If there are too many.
    """
    may_read(actor)
    if len(task_ids) > MOST_FOLLOWED:
        raise InputError(f"{len(task_ids)} tasks cannot be followed at once.", hint=f"{MOST_FOLLOWED} at most.")

    def operation(connection: Connection) -> dict[str, Cursors]:
        ids = [find(connection, actor, task_id).id for task_id in task_ids]
        return {id_: known[id_] if id_ in known else _end(connection, id_) for id_ in ids}

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
                        values=orjson.loads(text),
                    )
                )  # fmt: skip
                reached[launch.number] = seq + 1
            if len(rows) < room:
                reached[launch.number] = launch.cursor
        return LivePoints(task_id=task_id, resumed=tuple(resumed), points=tuple(found)), reached, False

    return await core.read(operation)


async def progress(core: Core, actor: Actor, told: Mapping[str, TaskProgress]) -> dict[str, TaskProgress]:
    """Return where the running tasks stand.

    Args:
        core: The server.
        actor: Who reads.
        told: What was known before: what has not changed is taken from it.
    """
    may_read(actor)

    def operation(connection: Connection) -> dict[str, TaskProgress]:
        rows = task_list.newest_of(connection, actor.project, "running", _RUNNING)
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


def loads(core: Core, told: dict[str, Load]) -> tuple[WorkerLoad, ...]:
    """Return the loads that workers have told since; `told` is brought up to date."""
    new = {
        id_: presence.load
        for id_, presence in core.fleet.presences.items()
        if presence.load is not None and presence.load is not told.get(id_)
    }
    told.update(new)
    return tuple(WorkerLoad(worker_id=id_, load=load) for id_, load in new.items())
