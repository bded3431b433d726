"""Task logs: each attempt continues the log after a separator line."""

from __future__ import annotations

from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, logs
from tunefleet.db.repositories.logs import StreamRow
from tunefleet.errors import OffsetConflict
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.observability.logs import scrub_bytes
from tunefleet.orchestrator.access.api_keys import refuse_ended
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.schemas.api import LogView
from tunefleet.schemas.worker_link import Cursor

CHUNK_BYTES: Final = 64 << 10
MAX_READ_BYTES: Final = 4 << 20
_LIMIT_NOTICE: Final = (
    b"\n--- The server keeps %s bytes of a task's log (TUNEFLEET_TASK_LOG_BYTES). The rest is in its folder on "
    b"its worker. ---\n"
)


def topic(task_id: str) -> str:
    """Return the topic that is notified when a task's log grows or its status changes."""
    return f"task:{task_id}"


async def append(core: ServerContext, attempt: AttemptActor, offset: int, data: bytes) -> Cursor:
    """Store bytes of an attempt's log and return its length.

    Args:
        offset: Offset of the bytes in the attempt's log.

    Raises:
        OffsetConflict: If bytes before them are missing; it carries the offset to continue from.
        ConflictError: If the attempt has ended and there are new bytes.
    """
    # Before duplicates are cut off: a retry with another offset must redact the same bytes.
    clean = scrub_bytes(data)

    def operation(connection: Connection) -> int:
        stream = logs.stream(connection, attempt.attempt_id)
        received = stream.received if stream else 0
        if offset > received:
            raise OffsetConflict(f"The log continues at byte {received}, not at {offset}.", cursor=received)
        new = clean[received - offset :]
        if not new:
            return received
        refuse_ended(connection, attempt)
        extend(connection, stream or open_stream(connection, attempt), new, core.settings.task_log_bytes)
        wake(connection, topic(attempt.task_id))
        return received + len(new)

    return Cursor(cursor=await core.write(operation))


def open_stream(connection: Connection, attempt: AttemptActor) -> StreamRow:
    """Start the log of an attempt, after a separator line if there were earlier attempts."""
    base = logs.size(connection, attempt.task_id)
    if base:
        row = attempts.by_ids(connection, [attempt.attempt_id])[attempt.attempt_id]
        # The previous attempt may have ended in the middle of a line.
        marker = f"\n--- attempt {row.number} on {row.worker_id} ---\n".encode()
        base = logs.add_chunk(connection, task_id=attempt.task_id, offset=base, data=marker)
    return logs.open_stream(connection, attempt_id=attempt.attempt_id, task_id=attempt.task_id, base=base)


def extend(connection: Connection, stream: StreamRow, data: bytes, limit_bytes: int) -> None:
    """Append bytes to the log of an attempt; at the limit, one line reports that the rest is dropped."""
    end = stream.base + stream.received
    room = max(0, limit_bytes - end)
    kept = data[:room]
    # Once for each attempt: with the chunk that exceeds the limit, or with its first one.
    if len(data) > room and (end <= limit_bytes or not stream.received):
        kept += _LIMIT_NOTICE % f"{limit_bytes:,}".encode()
    for start in range(0, len(kept), CHUNK_BYTES):
        piece = kept[start : start + CHUNK_BYTES]
        end = logs.add_chunk(connection, task_id=stream.task_id, offset=end, data=piece)
    logs.set_received(connection, stream.attempt_id, stream.received + len(data))


async def read(
    core: ServerContext,
    actor: Actor,
    task_id: str,
    *,
    offset: int | None = None,
    tail_bytes: int | None = None,
    limit_bytes: int = CHUNK_BYTES,
) -> LogView:
    """Return a chunk of a task's log.

    Args:
        tail_bytes: Start this many bytes before the end instead, at the start of a line.
    """
    may_read(actor)
    limit = max(4, min(limit_bytes, MAX_READ_BYTES))

    def operation(connection: Connection) -> LogView:
        row = find(connection, actor, task_id)
        size = logs.size(connection, row.id)
        start = max(0, size - max(0, tail_bytes)) if tail_bytes is not None else min(max(0, offset or 0), size)
        data = logs.read(connection, row.id, offset=start, limit=limit)
        if tail_bytes is not None and start > 0:
            skipped = data.find(b"\n") + 1
            start, data = start + skipped, data[skipped:]
        final = TaskStatus(row.status).final
        whole = data if final and start + len(data) == size else _whole_characters(data)
        return LogView(
            task_id=row.id,
            text=whole.decode(errors="replace"),
            offset=start,
            next_offset=start + len(whole),
            size_bytes=size,
            final=final and start + len(whole) == size,
        )

    return await core.read(operation)


def _whole_characters(data: bytes) -> bytes:
    """Cut off an incomplete UTF-8 character: the next chunk starts with it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
            return data[:-back] if length > back else data
    return data
