"""From which launch each launch of a task goes on, and so which of their points count.

A task that changes its machine may go on from a checkpoint that is older than its newest launch: what counts is what
led to that checkpoint, whatever other launches did meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from sqlalchemy import Connection, case, update

from tunefleet.store.journal import launches_of, records_of
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
    earlier = [each for each in launches_of(connection, row.task_id) if each.number < row.number]
    if not earlier:
        return
    makers = _makers(connection, row.task_id) if checkpoint is not None else {}
    last = row._replace(from_step=from_step, checkpoint=checkpoint)
    shown = _shown(earlier, last, makers)
    changed = {each.number: shown[each.number] for each in earlier if each.hidden_after != shown[each.number]}
    if changed:
        connection.execute(
            update(launches)
            .where(here, launches.c.number.in_(list(changed)))
            .values(hidden_after=case(changed, value=launches.c.number))
        )


def _makers(connection: Connection, task_id: str) -> dict[str, list[int]]:
    """Return the numbers of the launches that made each checkpoint, by digest, oldest first."""
    found: dict[str, list[int]] = {}
    for number, body in records_of(connection, task_id, "checkpoint"):
        digest = orjson.loads(body).get("digest")
        if isinstance(digest, str):
            found.setdefault(digest, []).append(number)
    return found


def _shown(earlier: Sequence[LaunchRow], last: LaunchRow, makers: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Return up to which step each earlier launch counts."""
    by_number = {each.number: each for each in earlier}
    line: dict[int, int] = {}
    child, step = last, last.from_step or 0
    while child.checkpoint is not None:
        made = [number for number in makers.get(child.checkpoint, ()) if number < child.number]
        if not made:
            break
        # Two that are equal, bit for bit, have made equal points too.
        child = by_number[made[-1]]
        line[child.number] = step
        step = min(step, child.from_step or 0)
    for number, each in by_number.items():
        if number > child.number:
            line.setdefault(number, _NOTHING)
        elif number < child.number:
            # Nobody says what the first of this line goes on from: from whatever counted before it.
            line[number] = step if each.hidden_after is None else min(step, each.hidden_after)
    return line
