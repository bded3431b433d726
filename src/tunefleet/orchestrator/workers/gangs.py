"""Gangs: the nodes of a multi-node run are offered, started and ended together.

The attempt of the first node is that of the task; the others share its number and carry `gang_of`. No node starts
before all have accepted. An error of a node's own fails the task immediately; an error that only reports lost peers
waits until the end of those is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, tasks
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.fleet import usage
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.orchestrator.tasks.retry_decision import reason_of
from tunefleet.schemas.worker_link import Finish

# Grace period after the time at which a silent peer is declared lost; then a "lost peer" error is taken as the cause.
SPARE_S: Final = 15.0


def complete(connection: Connection, rows: Iterable[AttemptRow]) -> dict[str, str]:
    """Return the rendezvous endpoints of the gangs whose nodes have all accepted, by attempt."""
    gang_ids = {row.id: row.gang_of for row in rows if row.gang_of is not None and row.state == "accepted"}
    if not gang_ids:
        return {}
    found = attempts.of_gangs(connection, sorted(set(gang_ids.values())))
    points = {gang_id: nodes[0].gang_point or "" for gang_id, nodes in found.items() if _all_accepted(nodes)}
    return {id_: points[gang_id] for id_, gang_id in gang_ids.items() if gang_id in points}


def newly_complete(connection: Connection, taken: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Return the first nodes of the gangs that the attempts just accepted complete."""
    found = attempts.of_gangs(connection, sorted({row.gang_of for row in taken if row.gang_of is not None}))
    complete_gangs = [nodes for nodes in found.values() if _all_accepted(nodes)]
    wake(connection, *(f"worker:{node.worker_id}" for nodes in complete_gangs for node in nodes))
    return [nodes[0] for nodes in complete_gangs]


def _all_accepted(nodes: Sequence[AttemptRow]) -> bool:
    return all(node.state in {"accepted", "finished"} for node in nodes)


def take(
    connection: Connection,
    finishes: Mapping[str, Finish],
    open_attempts: dict[str, AttemptRow],
    rows: Mapping[str, TaskRow],
    now: float,
    patience_s: float,
) -> tuple[dict[str, Finish], set[str]]:
    """Process the ends of nodes.

    Returns:
        The ends that are ends of tasks, and the attempts whose end is deferred.
    """
    own = {
        id_: _early(finish) if rows[open_attempts[id_].task_id].status == TaskStatus.DISPATCHED else finish
        for id_, finish in finishes.items()
        if not open_attempts[id_].member
    }
    held: set[str] = set()
    for id_ in finishes.keys() - own.keys():
        _take_member(connection, open_attempts.pop(id_), finishes[id_], rows, now)
    for id_, finish in list(own.items()):
        row = open_attempts[id_]
        if row.gang_of is not None and finish.lost_peer and _waits(connection, row, now, patience_s):
            held.add(id_)
            open_attempts[id_] = _with_failure_time(connection, row, now)
            del own[id_]
    return own, held


def release(connection: Connection, heads: Iterable[AttemptRow], rows: Mapping[str, TaskRow], now: float) -> None:
    """End the other nodes of gangs whose first node has ended, and notify their workers."""
    ids = [row.id for row in heads if row.gang_of == row.id]
    for nodes in attempts.of_gangs(connection, ids).values():
        left = [
            node._replace(state="void", reason=TaskReason.RELEASED.value, finished_at=now)
            for node in nodes
            if node.member and node.open
        ]
        attempts.store(connection, left)
        usage.ended(connection, left, rows)
        wake(connection, *(f"worker:{node.worker_id}" for node in left))


def decided(connection: Connection, rows: Sequence[AttemptRow]) -> bool:
    """Whether all peers that a first node lost have ended, so that its deferred end can be processed."""
    gang_ids = [row.id for row in rows if row.gang_failed_at is not None]
    return any(
        not any(node.open for node in nodes if node.member)
        for nodes in attempts.of_gangs(connection, gang_ids).values()
    )


def overdue(connection: Connection, now: float, patience_s: float) -> list[unreported_ends.Ending]:
    """Return the ends of gangs with a lost peer that no node has explained in time."""
    found: list[unreported_ends.Ending] = []
    for row in attempts.gangs_that_failed(connection, now - patience_s - 2 * SPARE_S):
        error = row.error or "A node lost its connection to the others, and none of them reported an error."
        found.append((row, TaskReason.NETWORK, error))
    return found


def _early(finish: Finish) -> Finish:
    """Turn a success before all nodes have accepted into a failure: nothing can have been computed."""
    if finish.outcome not in {"completed", "paused"}:
        return finish
    error = "The first node ended before all nodes had started."
    return finish.model_copy(update={"outcome": "failed", "reason": TaskReason.CRASHED.value, "error": error})


def _take_member(
    connection: Connection, row: AttemptRow, finish: Finish, rows: Mapping[str, TaskRow], now: float
) -> None:
    reason = reason_of(finish.outcome, finish.reason)
    error = None if finish.error is None else scrub(finish.error)
    if finish.outcome in {"failed", "released"} and not finish.lost_peer:
        message = f"Node {row.node_rank} ({row.worker_id}): {error or 'ended.'}"
        if finish.detail is not None:
            tasks.set_outcomes(connection, [(row.task_seq, None, scrub(finish.detail))])
        unreported_ends.end(connection, [(row, reason, message)], now)
        return
    lost_at = now if finish.lost_peer else None
    ended = row._replace(state="finished", reason=reason.value, error=error, finished_at=now, gang_failed_at=lost_at)
    attempts.store(connection, [ended])
    usage.ended(connection, [ended], rows)
    nodes = attempts.of_gangs(connection, [row.gang_of or ""]).get(row.gang_of or "", [])
    wake(connection, "placement", *(f"worker:{node.worker_id}" for node in nodes if node.id == node.gang_of))


def _waits(connection: Connection, row: AttemptRow, now: float, patience_s: float) -> bool:
    nodes = attempts.of_gangs(connection, [row.id]).get(row.id, [])
    missing = any(node.open for node in nodes if node.member)
    return missing and now - (row.gang_failed_at or now) < patience_s + SPARE_S


def _with_failure_time(connection: Connection, row: AttemptRow, now: float) -> AttemptRow:
    if row.gang_failed_at is not None:
        return row
    noted = row._replace(gang_failed_at=now)
    attempts.store(connection, [noted])
    return noted
