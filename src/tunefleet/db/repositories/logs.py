"""Logs: bytes in chunks, one stream per attempt, one log per task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from tunefleet.db.tables.core import log_chunks, log_streams


@dataclass(frozen=True, slots=True)
class StreamRow:
    """Delivered part of an attempt's log."""

    attempt_id: str
    task_id: str
    base: int
    received: int


def stream(connection: Connection, attempt_id: str) -> StreamRow | None:
    """Return the stream of an attempt."""
    row = connection.execute(select(log_streams).where(log_streams.c.attempt_id == attempt_id)).first()
    return StreamRow(*row) if row else None


def size(connection: Connection, task_id: str) -> int:
    """Return the length of a task's log in bytes."""
    return connection.execute(select(func.max(log_chunks.c.end)).where(log_chunks.c.task_id == task_id)).scalar() or 0


def open_stream(connection: Connection, *, attempt_id: str, task_id: str, base: int) -> StreamRow:
    """Start the stream of an attempt at the end of the task's log."""
    connection.execute(insert(log_streams).values(attempt_id=attempt_id, task_id=task_id, base=base, received=0))
    return StreamRow(attempt_id, task_id, base, 0)


def set_received(connection: Connection, attempt_id: str, received: int) -> None:
    """Store how many bytes an attempt has delivered."""
    connection.execute(update(log_streams).where(log_streams.c.attempt_id == attempt_id).values(received=received))


def add_chunk(connection: Connection, *, task_id: str, offset: int, data: bytes) -> int:
    """Append to a task's log and return its new length."""
    end = offset + len(data)
    connection.execute(insert(log_chunks).values(task_id=task_id, end=end, data=data))
    return end


def read(connection: Connection, task_id: str, *, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a task's log from an offset."""
    query = (
        select(log_chunks.c.end, log_chunks.c.data)
        .where(log_chunks.c.task_id == task_id, log_chunks.c.end > offset)
        .order_by(log_chunks.c.end)
    )
    piece = bytearray()
    # Options of this statement: set on the connection, they would apply to every later one, including writes.
    with connection.execute(query, execution_options={"yield_per": 16}) as found:
        for end, data in found:
            start = max(0, offset + len(piece) - (end - len(data)))
            piece += data[start : start + limit - len(piece)]
            if len(piece) >= limit:
                break
    return bytes(piece)


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the logs of deleted tasks."""
    connection.execute(delete(log_chunks).where(log_chunks.c.task_id.in_(list(task_ids))))
    connection.execute(delete(log_streams).where(log_streams.c.task_id.in_(list(task_ids))))
