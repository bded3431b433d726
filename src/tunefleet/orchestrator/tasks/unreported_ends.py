"""End attempts without a report from the worker: void offers, lost workers, timeouts, cancelled tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, events, queue, tasks
from tunefleet.db.repositories.events import Event
from tunefleet.db.repositories.queue import STRIKES, Cordon, VoidOffer
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.fleet import usage
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.tasks import commands, relations
from tunefleet.orchestrator.tasks.retry_decision import finalize
from tunefleet.orchestrator.tasks.transitions import Move, switch

# A task is not offered again to a worker that did not accept it: for 5 s, doubled each time.
FIRST_BACKOFF_S: Final = 5.0
MAX_BACKOFF_S: Final = 300.0
# A worker that repeatedly did not accept tasks of a kind gets none of them for this time.
CORDON_S: Final = 600.0
Ending = tuple[AttemptRow, TaskReason, str | None]


def end(connection: Connection, endings: Sequence[Ending], now: float) -> None:
    """Void attempts, and retry or end their tasks."""
    if not endings:
        return
    endings, others = _with_gangs(connection, endings)
    # Locked: another server's transaction may be moving the same tasks.
    rows = tasks.by_ids(connection, [attempt.task_id for attempt, _, _ in endings], lock=True)
    void = [
        attempt._replace(state="void", reason=reason.value, error=error, finished_at=now)
        for attempt, reason, error in endings
    ]
    void += [
        node._replace(state="void", reason=reason.value, error=error, finished_at=now) for node, reason, error in others
    ]
    attempts.store(connection, void)
    usage.ended(connection, void, rows)
    commands.close(connection, void, "its attempt was ended.", now)
    stopped = relations.causes_of_cancelled(connection, list(rows.values()))
    switch(
        connection,
        [
            finalize(rows[attempt.task_id], reason, now, error=error, stopped=stopped.get(attempt.task_seq))
            for attempt, reason, error in endings
        ],
        now,
    )
    # A worker that still holds one must drop it.
    wake(connection, *(f"worker:{attempt.worker_id}" for attempt in void))


def _with_gangs(connection: Connection, endings: Sequence[Ending]) -> tuple[list[Ending], list[Ending]]:
    """Return one end for each task, and the ends of the other nodes of gangs."""
    gangs = attempts.of_gangs(connection, sorted({row.gang_of for row, _, _ in endings if row.gang_of is not None}))
    first: dict[str, Ending] = {}
    alone: list[Ending] = []
    for ending in endings:
        row = ending[0]
        if row.gang_of is None:
            alone.append(ending)
        else:
            first.setdefault(row.gang_of, ending)
    others = [
        (node, reason, error)
        for gang_id, (row, reason, error) in first.items()
        for node in gangs.get(gang_id, [])
        if node.open and node.id != row.id
    ]
    return [*alone, *first.values()], others


def release(connection: Connection, rows: Sequence[AttemptRow], now: float) -> None:
    """Void attempts and queue their tasks again, without counting a failure for task or worker."""
    end(connection, [(row, TaskReason.NOT_ACCEPTED, None) for row in rows], now)


def refuse_offers(connection: Connection, offers: Sequence[AttemptRow], now: float) -> None:
    """Void offers that were not accepted; the task loses no retry, the worker gets a backoff for it."""
    _record_gang_refusals(connection, offers, now)
    end(connection, [(offer, TaskReason.NOT_ACCEPTED, None) for offer in offers], now)
    counts = {(void.task_id, void.worker_id): void.count for void in queue.void_offers_of(connection, _tasks(offers))}
    for offer in offers:
        count = counts.get((offer.task_id, offer.worker_id), 0) + 1
        pause_s = min(FIRST_BACKOFF_S * 2.0 ** (count - 1), MAX_BACKOFF_S)
        queue.put_void_offer(connection, VoidOffer(offer.task_id, offer.worker_id, count, now + pause_s))
    # One strike for all offers that expired together: a short stall of the worker counts once.
    for worker_id, kind in sorted({(offer.worker_id, offer.kind) for offer in offers}):
        _strike(connection, worker_id, kind, now)


def _record_gang_refusals(connection: Connection, offers: Sequence[AttemptRow], now: float) -> None:
    """Record which worker did not accept, since all nodes of its gang are released."""
    rows = tasks.by_ids(connection, [offer.task_id for offer in offers if offer.gang_of is not None])
    messages = []
    for offer in offers:
        if offer.task_id in rows and offer.gang_of is not None:
            message = (
                f"Worker {offer.worker_id} did not accept node {offer.node_rank} in time: all nodes are released, "
                "and the task is queued again."
            )
            messages.append(events.of_task(rows[offer.task_id], "task.message", now, {"message": message}))
    events.append(connection, messages)


def _strike(connection: Connection, worker_id: str, kind: str, now: float) -> None:
    before = {(c.worker_id, c.kind): c.strikes for c in queue.all_cordons(connection)}
    strikes = before.get((worker_id, kind), 0) + 1
    queue.put_cordon(connection, Cordon(worker_id, kind, strikes, now + CORDON_S))
    if strikes == STRIKES:
        data = {"kind": kind, "for_s": CORDON_S}
        events.append(connection, [Event("worker.cordoned", now, worker_id=worker_id, data=data)])


def _tasks(offers: Sequence[AttemptRow]) -> list[str]:
    return [offer.task_id for offer in offers]


def cancel_tasks(connection: Connection, rows: Sequence[TaskRow], snapshot: FleetSnapshot) -> None:
    """Cancel tasks that are not final, and the tasks that depend on them."""
    # On a live worker the task stops after its step, and the worker reports it. Any other ends now with a void token,
    # so that a lost worker cannot overwrite the outcome.
    asked = [row for row in rows if row.status == "running" and row.worker_id in snapshot.limits]
    commands.ask(connection, asked, snapshot.now)
    end_cancelled(connection, [row for row in rows if row not in asked], snapshot.now)


def end_cancelled(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Cancel tasks immediately and void their attempts."""
    stopped = relations.causes_of_cancelled(connection, rows)
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
    release(connection, [each for each in found if each.merged_into in wholes and each.state == "offered"], now)
