"""Round operations: open, close, fail and abandon a round, all in the caller's transaction.

A federation has at most one round that is not final. Every change locks the federation's row first, so that no update
can enter a round that is being closed.

In the federation of a sharded task, a shard keeps its worker name on any machine and in any attempt. Its status is
read from its task, not stored twice.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federations, rounds
from tunefleet.db.federations.federation_updates import COUNTED, DISCARDED, REJECTED, SUPERSEDED, WAITING, UpdateRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.db.repositories import artifacts, dependencies
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundReason, RoundStatus
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.federation.status import RUNNING, how_to_start, move, publish_event, spec_of
from tunefleet.spec.options.federation_options import FederationSpec

_COLLECTING: Final = RoundStatus.COLLECTING.value
_SAMPLING: Final = RoundStatus.SAMPLING.value
_ASSIGNED: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING})


def tick(connection: Connection, seq: int, now: float) -> None:
    """Advance a federation's newest round: open it, sample its participants, or close it."""
    row = federations.by_seq(connection, seq, lock=True)
    if row is None or row.status != RUNNING:
        return
    current = rounds.get(connection, seq, row.round)
    if current is None or RoundStatus(current.status).final:
        open_next(connection, row, now)
    elif current.status == _SAMPLING:
        sample(connection, row, current, now)
    elif current.status == _COLLECTING and not close_if_complete(connection, row, current, now):
        _end_if_deserted(connection, row, current, now)


def open_next(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    """Open the next round, or complete the federation if it has published all its rounds."""
    spec = spec_of(row)
    if spec.rounds is not None and rounds.count(connection, row.seq, RoundStatus.PUBLISHED) >= spec.rounds:
        _discard(
            connection,
            federation_updates.waiting(connection, row.seq),
            "The federation has completed all its rounds.",
            now,
        )
        return move(connection, row, FederationStatus.COMPLETED, now)
    number = row.round + 1
    opened = RoundRow(
        row.seq, number, _SAMPLING, None, None, None, now, None, None, None, None, 0.0, 0, None, None
    )  # fmt: skip
    rounds.insert_one(connection, opened)
    federations.change(connection, row.seq, {"round": number})
    row = row._replace(round=number)
    if row.status == RUNNING:
        sample(connection, row, opened, now)
    return row


def sample(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> None:
    """Sample the participants of a round, count the updates that wait for it, and close it if they suffice."""
    spec = spec_of(row)
    sampled = _sampled(row, spec, current.number, _expected_workers(connection, row))
    names = None if sampled is None else orjson.dumps(sampled).decode()
    collecting = rounds.move(connection, current, RoundReason.SAMPLED, now, values={"participants": names})
    assert collecting is not None, "the federation is locked"
    taken = [
        each for each in federation_updates.waiting(connection, row.seq) if is_participant(collecting, each.worker)
    ]
    if taken:
        changes = {"state": COUNTED, "round": collecting.number, "reason": None}
        federation_updates.change(connection, [each.seq for each in taken], changes)
        collecting = rounds.change(connection, collecting, {"deadline_at": now + spec.deadline_s})
    if not close_if_complete(connection, row, collecting, now):
        _end_if_deserted(connection, row, collecting, now)


def _sampled(row: FederationRow, spec: FederationSpec, number: int, left: list[str] | None) -> list[str] | None:
    if spec.participants is None:
        return None
    names = sorted(spec.participants) if left is None else left
    if spec.max_workers is None or len(names) <= spec.max_workers:
        return names
    # Seeded with the round: any server samples the same participants, also after a restart.
    return sorted(random.Random(f"{row.id}/{number}").sample(names, spec.max_workers))


def is_participant(current: RoundRow, worker: str) -> bool:
    """Whether a round accepts a worker's update now."""
    if current.status != _COLLECTING:
        return False
    names = participants(current)
    return names is None or worker in names


def participants(current: RoundRow) -> tuple[str, ...] | None:
    """Return the participants of a round; None if any worker may take part, or none are sampled yet."""
    return None if current.participants is None else tuple(orjson.loads(current.participants))


def close_if_complete(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> bool:
    """Close a round that has all expected updates, or the minimum at its deadline."""
    reason = _why_closed(connection, row, current, now)
    if reason is None:
        return False
    _close(connection, row, current, reason, now)
    return True


def has_all_updates(connection: Connection, seq: int) -> bool:
    """Whether a training run's round has all updates that it waits for: a missing shard may have been requeued."""
    row = federations.by_seq(connection, seq)
    current = None if row is None else rounds.get(connection, seq, row.round)
    if row is None or current is None or current.status != _COLLECTING:
        return False
    return _why_closed(connection, row, current, 0.0) is not None


def _why_closed(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> RoundReason | None:
    """Return the reason to close a round now; None if it has to wait."""
    if row.status != RUNNING:
        return None
    uploaded = federation_updates.counted_workers(connection, row.seq, current.number)
    if len(uploaded) < spec_of(row).min_workers:
        return None
    names = participants(current)
    if names is None or uploaded.issuperset(_awaited(connection, row, names)):
        return RoundReason.ALL_HERE
    return RoundReason.DEADLINE if current.deadline_at is not None and current.deadline_at <= now else None


def _end_if_deserted(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> None:
    """Complete a federation that has too few unfinished shards left for another round."""
    spec = spec_of(row)
    if row.status == RUNNING and _has_too_few_left(connection, row, current.number, spec.min_workers):
        left = any(not status.final for status in (_shard_statuses(connection, row) or {}).values())
        why = f"Fewer than {spec.min_workers} parts were left." if left else "All parts have ended."
        abandon(connection, row, RoundReason.FEDERATION_ENDED, why, now)
        move(connection, row, FederationStatus.COMPLETED, now)


def close_now(connection: Connection, row: FederationRow, now: float) -> RoundRow:
    """Close the open round of a federation at a caller's request."""
    if row.status != RUNNING:
        raise ConflictError(f"Federation {row.id} is {row.status}.", hint=how_to_start(row))
    current = rounds.get(connection, row.seq, row.round)
    assert current is not None, "a running federation has a round"
    if current.status != _COLLECTING:
        return current
    spec = spec_of(row)
    uploaded = federation_updates.counted_workers(connection, row.seq, current.number)
    # Fewer than `min_workers` is allowed by hand, but a single update is not an average.
    needed = max(spec.strategy.min_updates, min(2, spec.min_workers))
    if len(uploaded) < needed:
        raise ConflictError(
            f"Round {current.number} of {row.id} has {len(uploaded)} updates; aggregation needs at least {needed}.",
            hint=f"Wait for more workers to upload; `tunefleet federation show {row.id}` lists who has uploaded.",
        )
    return _close(connection, row, current, RoundReason.ASKED_FOR, now)


def _close(connection: Connection, row: FederationRow, current: RoundRow, reason: RoundReason, now: float) -> RoundRow:
    closed = rounds.move(connection, current, reason, now)
    assert closed is not None, "the federation is locked"
    publish_event(connection, row, "federation.round_closed", now, round=closed.number, reason=reason.value)
    return closed


def fail(
    connection: Connection,
    row: FederationRow,
    current: RoundRow,
    reason: RoundReason,
    error: str,
    now: float,
    *,
    holder: str,
    blamed: UpdateRow | None = None,
) -> bool:
    """End a round that cannot be aggregated, and open the next.

    If one update is to blame, it is rejected and the others count in the next round. Otherwise all are discarded: the
    same ones would fail again.

    Returns:
        False if another holder has taken over the round: nothing was changed.
    """
    failed = rounds.move(connection, current, reason, now, holder=holder, error=error)
    if failed is None:
        return False
    counted = federation_updates.of_round(connection, row.seq, current.number, [COUNTED])
    if blamed is None:
        _discard(connection, counted, f"Round {current.number} failed: {error}", now)
        # Allows workers to send the same weights again at another step: the cause may be elsewhere.
        federations.forget_values(connection, row.seq, [each.worker for each in counted])
    else:
        settled = {"state": REJECTED, "reason": error, "settled_at": now}
        federation_updates.change(connection, [blamed.seq], settled)
        artifacts.unpin(connection, [blamed.holder])
        _carry_over(connection, row, [each for each in counted if each.seq != blamed.seq], now)
    artifacts.unpin(connection, [result_holder(row.id, current.number)])
    about: dict[str, Any] = {"round": current.number, "reason": reason.value, "error": error}
    publish_event(connection, row, "federation.round_failed", now, **about, took_s=duration_s(current, now))
    open_next(connection, row, now)
    return True


def duration_s(row: RoundRow, now: float) -> float:
    """Return how long a round has been open, in seconds; 0 if the clock was set back."""
    return round(max(0.0, now - row.opened_at), 3)


def _carry_over(connection: Connection, row: FederationRow, carried: Sequence[UpdateRow], now: float) -> None:
    """Move updates to the next round, except for those that a newer one of the same worker replaces."""
    newer = {each.worker: each for each in federation_updates.waiting(connection, row.seq)}
    left = [each for each in carried if each.worker not in newer]
    for each in carried:
        if each.worker in newer:
            _supersede_with(connection, row, each, newer[each.worker], now)
    federation_updates.change(connection, [each.seq for each in left], {"state": WAITING, "round": None})


def _supersede_with(connection: Connection, row: FederationRow, older: UpdateRow, newer: UpdateRow, now: float) -> None:
    # The newer update was meant for the next round, so its weight does not include the older one's rows yet.
    rows = combined_rows(connection, row, older, newer)
    federation_updates.change(connection, [newer.seq], {"num_examples": rows})
    supersede(connection, older, newer.seq, now)


def supersede(connection: Connection, older: UpdateRow, by: int, now: float) -> None:
    """Mark an update as superseded by a newer one of the same worker."""
    changes = {"state": SUPERSEDED, "reason": federation_updates.replacement(by), "settled_at": now}
    federation_updates.change(connection, [older.seq], changes)
    artifacts.unpin(connection, [older.holder])


def abandon(connection: Connection, row: FederationRow, reason: RoundReason, why: str, now: float) -> None:
    """Abandon the open round of a federation, and discard the updates for it and for the next one."""
    current = rounds.get(connection, row.seq, row.round)
    if current is not None and not RoundStatus(current.status).final:
        rounds.move(connection, current, reason, now, error=why)
        _discard(connection, federation_updates.of_round(connection, row.seq, current.number, [COUNTED]), why, now)
        artifacts.unpin(connection, [result_holder(row.id, current.number)])
    _discard(connection, federation_updates.waiting(connection, row.seq), why, now)


def result_holder(federation_id: str, number: int) -> str:
    """Return the pin holder of a round's result until it is published."""
    return f"{federation_id}-round-{number}"


def _discard(connection: Connection, discarded: Sequence[UpdateRow], why: str, now: float) -> None:
    changes = {"state": DISCARDED, "reason": why, "settled_at": now}
    federation_updates.change(connection, [each.seq for each in discarded], changes)
    artifacts.unpin(connection, [each.holder for each in discarded])


def combined_rows(connection: Connection, row: FederationRow, older: UpdateRow, newer: UpdateRow) -> int:
    """Return the weight of an update: its own rows, plus those of the update whose training it continues.

    Workers count rows from upload to upload. Without a base version, a worker is assumed to continue its own training
    unless a version was published in between. Rows that a new attempt trains on again, from scratch or from a
    checkpoint, count once.
    """
    spec = spec_of(row)
    if newer.base_version != older.base_version:
        return newer.num_examples
    if newer.base_version is None and not _went_on(connection, row, older):
        return newer.num_examples
    if newer.rows_before is not None and older.rows_after is not None:
        again = older.rows_after - newer.rows_before
        kept = older.num_examples - min(max(again, 0), older.num_examples)
        return min(kept + newer.num_examples, spec.max_num_examples)
    if newer.step <= older.step or newer.attempt != older.attempt:
        return newer.num_examples
    return min(older.num_examples + newer.num_examples, spec.max_num_examples)


def _went_on(connection: Connection, row: FederationRow, older: UpdateRow) -> bool:
    """Whether the worker cannot have loaded a version between an update without base version and its next one."""
    # The first update of a round may be late: trained before the newest version replaced the worker's adapter. The next
    # update does not include it then. Too little weight for one update is better than counting rows twice.
    if older.state != COUNTED:
        return False  # it was queued for the next round, so it precedes this round's version
    return row.version == 0 or federation_updates.replaced_in_its_round(connection, older)


def worker_of(number: int) -> str:
    """Return the worker name of a shard; shards are numbered from 0."""
    return f"part-{number}"


def _shard_statuses(connection: Connection, row: FederationRow) -> Mapping[str, TaskStatus] | None:
    """Return the status of each shard by worker name; None if the federation belongs to no task."""
    if row.task_seq is None:
        return None
    found = dependencies.shard_statuses(connection, row.task_seq)
    return {worker_of(number): status for number, status in enumerate(found)}


def _expected_workers(connection: Connection, row: FederationRow) -> list[str] | None:
    """Return the workers that a new round can count on: unfinished shards, and those whose update already waits.

    None if the federation belongs to no task.
    """
    found = _shard_statuses(connection, row)
    if found is None:
        return None
    waiting = {each.worker for each in federation_updates.waiting(connection, row.seq)}
    return sorted({worker for worker, status in found.items() if not status.final} | waiting)


def _has_too_few_left(connection: Connection, row: FederationRow, number: int, least: int) -> bool:
    """Whether too few shards are unfinished for a round to get enough updates."""
    coming = _expected_workers(connection, row)
    if coming is None:
        return False
    return len(federation_updates.counted_workers(connection, row.seq, number).union(coming)) < least


def _awaited(connection: Connection, row: FederationRow, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the participants that a round waits for: of a task's shards, those assigned to a worker."""
    found = _shard_statuses(connection, row)
    if found is None:
        return names
    return tuple(name for name in names if found.get(name) in _ASSIGNED)
