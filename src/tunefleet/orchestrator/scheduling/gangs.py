"""The nodes of one training on several workers: offered, begun, and ended together.

The attempt of the first node is that of the task; the others share its number and carry `gang_of`. Nobody begins before
all have accepted. Which node brought a failure about is decided here: an error of its own counts at once, one that
only says that the others are gone waits until it is known what became of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, tasks
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.observability.scrub import scrub
from tunefleet.orchestrator.access import gpu_usage
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.orchestrator.tasks.verdicts import reason_of
from tunefleet.schemas.worker_link import Finish

# So long after a silent worker would be known to be lost, the word of who says that the others are gone is taken.
SPARE_S: Final = 15.0


def complete(connection: Connection, rows: Iterable[AttemptRow]) -> dict[str, str]:
    """Return where the gangs of accepted attempts meet whose every node has accepted, by attempt."""
    asked = {row.id: row.gang_of for row in rows if row.gang_of is not None and row.state == "accepted"}
    if not asked:
        return {}
    found = attempts.of_gangs(connection, sorted(set(asked.values())))
    points = {gang_id: nodes[0].gang_point or "" for gang_id, nodes in found.items() if _begun(nodes)}
    return {id_: points[gang_id] for id_, gang_id in asked.items() if gang_id in points}


def newly_complete(connection: Connection, taken: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Return the first nodes of the gangs that are complete with attempts that were just accepted."""
    found = attempts.of_gangs(connection, sorted({row.gang_of for row in taken if row.gang_of is not None}))
    whole = [nodes for nodes in found.values() if _begun(nodes)]
    wake(connection, *(f"worker:{node.worker_id}" for nodes in whole for node in nodes))
    return [nodes[0] for nodes in whole]


def _begun(nodes: Sequence[AttemptRow]) -> bool:
    return all(node.state in {"accepted", "finished"} for node in nodes)


def take(
    connection: Connection,
    finishes: Mapping[str, Finish],
    mine: dict[str, AttemptRow],
    rows: Mapping[str, TaskRow],
    now: float,
    patience_s: float,
) -> tuple[dict[str, Finish], set[str]]:
    """Take the ends of nodes.

    Returns:
        The ends that are those of tasks; and the attempts whose end is not taken yet.
    """
    own = {
        id_: _early(finish) if rows[mine[id_].task_id].status == TaskStatus.DISPATCHED else finish
        for id_, finish in finishes.items()
        if not mine[id_].member
    }
    held: set[str] = set()
    for id_ in finishes.keys() - own.keys():
        _take_member(connection, mine.pop(id_), finishes[id_], rows, now)
    for id_, finish in list(own.items()):
        row = mine[id_]
        if row.gang_of is not None and finish.lost_peer and _waits(connection, row, now, patience_s):
            held.add(id_)
            mine[id_] = _noted(connection, row, now)
            del own[id_]
    return own, held


def release(connection: Connection, heads: Iterable[AttemptRow], rows: Mapping[str, TaskRow], now: float) -> None:
    """End the other nodes of gangs whose first node has ended; their workers are told to drop what is left."""
    ids = [row.id for row in heads if row.gang_of == row.id]
    for nodes in attempts.of_gangs(connection, ids).values():
        left = [
            node._replace(state="void", reason=TaskReason.RELEASED.value, finished_at=now)
            for node in nodes
            if node.member and node.open
        ]
        attempts.store(connection, left)
        gpu_usage.ended(connection, left, rows)
        wake(connection, *(f"worker:{node.worker_id}" for node in left))


def decided(connection: Connection, rows: Sequence[AttemptRow]) -> bool:
    """Whether it is known by now what became of the nodes that first nodes miss: their end can be said again."""
    asked = [row.id for row in rows if row.gang_failed_at is not None]
    return any(
        not any(node.open for node in nodes if node.member) for nodes in attempts.of_gangs(connection, asked).values()
    )


def overdue(connection: Connection, now: float, patience_s: float) -> list[unreported_ends.Ending]:
    """Return the ends of gangs of which a node said long ago that it misses the others, and nobody else said why."""
    found: list[unreported_ends.Ending] = []
    for row in attempts.gangs_that_failed(connection, now - patience_s - 2 * SPARE_S):
        error = row.error or "A node lost its connection to the others, and none of them has said why."
        found.append((row, TaskReason.NETWORK, error))
    return found


def _early(finish: Finish) -> Finish:
    """Return the end of a first node as it is taken while not all have accepted: nothing can have been computed."""
    if finish.outcome not in {"completed", "paused"}:
        return finish
    error = "Its first node ended before all nodes had begun."
    return finish.model_copy(update={"outcome": "failed", "reason": TaskReason.CRASHED.value, "error": error})


def _take_member(
    connection: Connection, row: AttemptRow, finish: Finish, rows: Mapping[str, TaskRow], now: float
) -> None:
    reason = reason_of(finish.outcome, finish.reason)
    error = None if finish.error is None else scrub(finish.error)
    if finish.outcome in {"failed", "released"} and not finish.lost_peer:
        told = f"Node {row.node_rank} ({row.worker_id}): {error or 'it ended.'}"
        if finish.detail is not None:
            tasks.set_outcomes(connection, [(row.task_seq, None, scrub(finish.detail))])
        unreported_ends.end(connection, [(row, reason, told)], now)
        return
    lost_at = now if finish.lost_peer else None
    ended = row._replace(state="finished", reason=reason.value, error=error, finished_at=now, gang_failed_at=lost_at)
    attempts.store(connection, [ended])
    gpu_usage.ended(connection, [ended], rows)
    nodes = attempts.of_gangs(connection, [row.gang_of or ""]).get(row.gang_of or "", [])
    wake(connection, "placement", *(f"worker:{node.worker_id}" for node in nodes if node.id == node.gang_of))


def _waits(connection: Connection, row: AttemptRow, now: float, patience_s: float) -> bool:
    nodes = attempts.of_gangs(connection, [row.id]).get(row.id, [])
    missing = any(node.open for node in nodes if node.member)
    return missing and now - (row.gang_failed_at or now) < patience_s + SPARE_S


def _noted(connection: Connection, row: AttemptRow, now: float) -> AttemptRow:
    if row.gang_failed_at is not None:
        return row
    noted = row._replace(gang_failed_at=now)
    attempts.store(connection, [noted])
    return noted
