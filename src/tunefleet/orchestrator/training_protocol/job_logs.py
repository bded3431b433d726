"""Log lines of jobs: report and read."""

from __future__ import annotations

from functools import partial
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import logs, training_protocol
from tunefleet.errors import OffsetConflict
from tunefleet.observability.logs import scrub_bytes
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.telemetry import logs as log_service
from tunefleet.orchestrator.training_protocol import held_attempts as holding
from tunefleet.schemas.training_protocol.reports import LogLines, LogPage, LogsStored

_PIECE_BYTES: Final = 1 << 20


async def report(core: ServerContext, actor: AttemptActor, body: LogLines) -> LogsStored:
    """Store lines of a job's log; lines that are stored already, by number, are skipped.

    Lines of an ended job are accepted too: some agents send them only then.

    Raises:
        OffsetConflict: If earlier lines are missing; it contains the number to continue from.
        ConflictError: If the job is no longer held with this token.
    """
    await agents.touch(core, actor)
    limit = core.settings.task_log_bytes
    return await core.write(partial(_store, actor=actor, body=body, now=core.clock.wall(), limit_bytes=limit))


def _store(connection: Connection, *, actor: AttemptActor, body: LogLines, now: float, limit_bytes: int) -> LogsStored:
    holding.of_reporter(connection, actor, now)
    count = training_protocol.lines(connection, actor.attempt_id)
    offset = count if body.offset is None else body.offset
    if offset > count:
        raise OffsetConflict(f"The log continues at line {count}, not at {offset}.", cursor=count)
    new = body.logs[count - offset :]
    if new:
        # Line breaks within a line are replaced: offsets count lines.
        text = "".join(f"{line.rstrip().replace(chr(10), ' ')}\n" for line in new)
        # Jobs print environment variables and URLs, which may contain credentials.
        data = scrub_bytes(text.encode(errors="replace"))
        stream = logs.stream(connection, actor.attempt_id) or log_service.open_stream(connection, actor)
        log_service.extend(connection, stream, data, limit_bytes)
        training_protocol.set_lines(
            connection, attempt_id=actor.attempt_id, task_id=actor.task_id, count=count + len(new)
        )
        wake(connection, log_service.topic(actor.task_id))
    return LogsStored(logs_appended=len(new), total_logs=count + len(new))


async def read(core: ServerContext, actor: Actor, task_id: str, *, limit: int, offset: int) -> LogPage:
    """Return lines of a job's log."""
    may_read(actor)

    def operation(connection: Connection) -> LogPage:
        row = find(connection, actor, task_id)
        size = logs.size(connection, row.id)
        total = _count(connection, row.id, size)
        first = max(0, total + offset) if offset < 0 else min(offset, total)
        lines = _lines(connection, row.id, size, first, limit)
        return LogPage(logs=lines, total_lines=total, offset=first, limit=limit)

    return await core.read(operation)


def _count(connection: Connection, task_id: str, size: int) -> int:
    count, last = 0, b"\n"
    for at in range(0, size, _PIECE_BYTES):
        piece = logs.read(connection, task_id, offset=at, limit=_PIECE_BYTES)
        count += piece.count(b"\n")
        last = piece[-1:] or last
    return count + (last != b"\n")


def _lines(connection: Connection, task_id: str, size: int, first: int, limit: int) -> list[str]:
    found: list[str] = []
    passed, rest = 0, b""
    for at in range(0, size, _PIECE_BYTES):
        piece = logs.read(connection, task_id, offset=at, limit=_PIECE_BYTES)
        breaks = piece.count(b"\n")
        if passed + breaks < first:
            # The piece ends in a line before `first`, or at the start of the first wanted one.
            passed += breaks
            rest = piece[piece.rfind(b"\n") + 1 :] if breaks else rest + piece
            continue
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        found += [line.decode(errors="replace") for line in lines[max(0, first - passed) :]]
        passed += len(lines)
        if len(found) >= limit:
            return found[:limit]
    if rest and passed >= first:
        found.append(rest.decode(errors="replace"))
    return found[:limit]
