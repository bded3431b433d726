"""Tags of tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select

from tunefleet.db.tables.core import task_tags

_OF_TASKS = (
    select(task_tags)
    .where(task_tags.c.task_seq.in_(bindparam("seqs", expanding=True)))
    .order_by(task_tags.c.task_seq, task_tags.c.tag)
)


def of_tasks(connection: Connection, seqs: Sequence[int]) -> dict[int, list[str]]:
    """Return the tags of tasks in alphabetical order, by `seq`; tasks without tags are omitted."""
    found: dict[int, list[str]] = {}
    if seqs:
        for seq, tag in connection.execute(_OF_TASKS, {"seqs": list(seqs)}):
            found.setdefault(seq, []).append(tag)
    return found


def add(connection: Connection, seq: int, tags: Collection[str]) -> None:
    """Add tags to a task; existing ones stay."""
    missing = sorted(set(tags).difference(of_tasks(connection, [seq]).get(seq, ())))
    if missing:
        connection.execute(insert(task_tags), [{"task_seq": seq, "tag": tag} for tag in missing])


def remove(connection: Connection, seq: int, tags: Collection[str]) -> None:
    """Remove tags from a task; others stay."""
    connection.execute(delete(task_tags).where(task_tags.c.task_seq == seq, task_tags.c.tag.in_(list(tags))))


def replace(connection: Connection, seq: int, tags: Collection[str]) -> None:
    """Set the tags of a task."""
    connection.execute(delete(task_tags).where(task_tags.c.task_seq == seq, task_tags.c.tag.not_in(list(tags))))
    add(connection, seq, tags)
