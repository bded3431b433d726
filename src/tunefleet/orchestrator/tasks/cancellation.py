"""Cancel tasks: directly where no live worker runs them, otherwise through the worker."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.tasks import commands, sharding_causes, unreported_ends
from tunefleet.orchestrator.tasks.transitions import Move, switch


def cancel(connection: Connection, rows: Sequence[TaskRow], snapshot: FleetSnapshot) -> None:
    """Cancel tasks that are not final, and the tasks that depend on them."""
    # On a live worker the task stops after its step, and the worker reports it. Any other ends now with a void token,
    # so that a lost worker cannot overwrite the outcome.
    asked = [row for row in rows if row.status == "running" and row.worker_id in snapshot.limits]
    commands.ask(connection, asked, snapshot.now)
    end(connection, [row for row in rows if row not in asked], snapshot.now)


def end(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Cancel tasks immediately and void their attempts."""
    stopped = sharding_causes.of_asked(connection, rows)
    moves = []
    for row in rows:
        reason, error = stopped.get(row.seq, (TaskReason.CANCELLED_BY_USER, None))
        moves.append(Move(row, reason, changes={"error": error}))
    for reason in dict.fromkeys(move.reason for move in moves):
        commands.void(connection, [move.task for move in moves if move.reason is reason], reason, now)
    _release_coalesced(connection, rows, now)
    switch(connection, moves, now)


def _release_coalesced(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Release offers that were coalesced into an attempt that is now void."""
    wholes = {row.attempt_id for row in rows if row.merge_key is not None and row.attempt_id is not None}
    holders = {row.worker_id for row in rows if row.attempt_id in wholes and row.worker_id is not None}
    found = [each for holder in sorted(holders) for each in attempts.open_of(connection, holder).values()]
    unreported_ends.release(
        connection, [each for each in found if each.merged_into in wholes and each.state == "offered"], now
    )
