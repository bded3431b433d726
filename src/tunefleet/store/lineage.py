"""From which launch each launch of a task goes on, and so which of their points count.

A task that changes its machine may go on from a checkpoint that is older than its newest launch: what counts is what
led to that checkpoint, whatever other launches did meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from sqlalchemy import Connection, case, update

from tunefleet.store.journal import first_records, launches_of
from tunefleet.store.rows import LaunchRow
from tunefleet.store.tables import launches

_NOTHING = -1
"""No step is so early."""


def resume_from(connection: Connection, row: LaunchRow, *, from_step: int, checkpoint: str | None) -> None:
    """Store where a launch started, and hide what does not lead to it.

    Args:
        connection: To write with.
        row: The launch; the newest of its task.
        from_step: The step that it resumes at.
        checkpoint: Digest of what it resumes from; null where it began anew, or does not say.
    """
    here = launches.c.task_id == row.task_id
    connection.execute(
        update(launches).where(here, launches.c.launch == row.launch).values(from_step=from_step, checkpoint=checkpoint)
    )
    every = [each for each in launches_of(connection, row.task_id) if each.number <= row.number]
    if len(every) == 1:
        return
    shown = _shown(every, _parents(connection, every))
    changed = {each.number: shown[each.number] for each in every[:-1] if each.hidden_after != shown[each.number]}
    if changed:
        connection.execute(
            update(launches)
            .where(here, launches.c.number.in_(list(changed)))
            .values(hidden_after=case(changed, value=launches.c.number))
        )


def _parents(connection: Connection, every: Sequence[LaunchRow]) -> dict[int, int]:
    """Return the number of the launch that made what each goes on from, of those that say so."""
    numbers = {each.launch: each.number for each in every}
    found = {}
    for number, body in first_records(connection, every[0].task_id, list(numbers.values())).items():
        parent = numbers.get(orjson.loads(body).get("parent"))
        if parent is not None and parent < number:
            found[number] = parent
    return found


def _shown(every: Sequence[LaunchRow], parents: Mapping[int, int]) -> dict[int, int | None]:
    """Return up to which step each launch counts, seen from the newest; null counts whole.

    Who does not say what made its checkpoint goes on from the launch before it.
    """
    place = {each.number: index for index, each in enumerate(every)}
    shown: dict[int, int | None] = dict.fromkeys(place, _NOTHING)
    index, limit = len(every) - 1, None
    while True:
        child = every[index]
        shown[child.number] = limit
        if child.from_step is not None:
            limit = child.from_step if limit is None else min(limit, child.from_step)
        if index == 0:
            return shown
        index = place[parents[child.number]] if child.number in parents else index - 1
