"""Commands to running attempts or to workers, and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from tunefleet.db.engine.writer import wake
from tunefleet.db.rows import CommandRow
from tunefleet.db.tables.core import commands

_RANKS: Final = {"pending": 0, "acknowledged": 1, "applied": 2, "durable": 3, "failed": 3}
# A literal, not a parameter: only then is the partial index used.
_UNDER_WAY = text("commands.state IN ('pending', 'acknowledged', 'applied')")
_OF_WORKER = (
    select(commands)
    .where(commands.c.worker_id == bindparam("worker_id"), _UNDER_WAY)
    .order_by(commands.c.created_at, commands.c.id)
)
_PENDING = _OF_WORKER.where(commands.c.state == "pending")
_UPDATE = (
    update(commands)
    .where(commands.c.id == bindparam("b_id"))
    .values(
        state=bindparam("b_state"),
        step=bindparam("b_step"),
        checkpoint=bindparam("b_checkpoint"),
        message=bindparam("b_message"),
        result=bindparam("b_result"),
        updated_at=bindparam("b_updated_at"),
    )
)


def topic(command_id: str) -> str:
    """Return the topic that is published when a command changes."""
    return f"command:{command_id}"


def insert_one(connection: Connection, row: CommandRow) -> None:
    """Store a command, and notify its worker."""
    connection.execute(insert(commands).values(row._asdict()))
    wake(connection, f"worker:{row.worker_id}")


def get(connection: Connection, command_id: str) -> CommandRow | None:
    """Return a command."""
    found = connection.execute(select(commands).where(commands.c.id == command_id)).first()
    return CommandRow(*found) if found else None


def of_task(connection: Connection, task_id: str) -> list[CommandRow]:
    """Return the commands of a task, oldest first."""
    query = select(commands).where(commands.c.task_id == task_id).order_by(commands.c.created_at, commands.c.id)
    return [CommandRow(*row) for row in connection.execute(query)]


def under_way(connection: Connection, worker_id: str) -> list[CommandRow]:
    """Return a worker's unsettled commands, oldest first."""
    return [CommandRow(*row) for row in connection.execute(_OF_WORKER, {"worker_id": worker_id})]


def pending(connection: Connection, worker_id: str) -> list[CommandRow]:
    """Return a worker's unacknowledged commands, oldest first."""
    return [CommandRow(*row) for row in connection.execute(_PENDING, {"worker_id": worker_id})]


def advanced(row: CommandRow, state: str, now: float, **changes: Any) -> CommandRow | None:
    """Return a command in a later state; `None` if the state is not later."""
    # Reports may arrive late or twice: a state never moves backwards.
    if row.settled or _RANKS[state] <= _RANKS[row.state]:
        return None
    given = {name: value for name, value in changes.items() if value is not None}
    return row._replace(state=state, updated_at=now, **given)


def store(connection: Connection, rows: Sequence[CommandRow]) -> None:
    """Store the state of commands, and notify waiting requests."""
    if not rows:
        return
    connection.execute(
        _UPDATE,
        [
            {
                "b_id": row.id, "b_state": row.state, "b_step": row.step, "b_checkpoint": row.checkpoint,
                "b_message": row.message, "b_updated_at": row.updated_at, "b_result": row.result,
            }
            for row in rows
        ],
    )  # fmt: skip
    wake(connection, *(topic(row.id) for row in rows))


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the commands of deleted tasks."""
    connection.execute(delete(commands).where(commands.c.task_id.in_(list(task_ids))))


def delete_of_worker(connection: Connection, worker_id: str) -> None:
    """Delete the commands to a deleted worker itself."""
    connection.execute(delete(commands).where(commands.c.worker_id == worker_id, commands.c.task_id.is_(None)))


def of_attempts(connection: Connection, attempt_ids: Iterable[str]) -> list[CommandRow]:
    """Return the unsettled commands of attempts."""
    query = select(commands).where(commands.c.attempt_id.in_(list(attempt_ids)), _UNDER_WAY)
    return [CommandRow(*row) for row in connection.execute(query)]
