"""Rounds: opened, closed when enough has come, failed or given up; all in the caller's transaction.

A federation has one round at a time that is not final. Its row is locked by whoever changes any of it, so that an
update cannot slip into a round that is being closed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federations, rounds
from tunefleet.db.federations.federation_updates import COUNTED, DISCARDED, REJECTED, SUPERSEDED, WAITING, UpdateRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundReason, RoundStatus
from tunefleet.orchestrator.federation import task_parts
from tunefleet.orchestrator.federation.status import RUNNING, how_to_start, move, spec_of, tell
from tunefleet.orchestrator.federation.updates.weights import rows_of_both
from tunefleet.spec.options.federation_options import FederationSpec

_COLLECTING: Final = RoundStatus.COLLECTING.value
_SAMPLING: Final = RoundStatus.SAMPLING.value


def tick(connection: Connection, seq: int, now: float) -> None:
    """Do what a federation's newest round has been waiting for: draw who takes part, or close it."""
    row = federations.by_seq(connection, seq, lock=True)
    if row is None or row.status != RUNNING:
        return
    current = rounds.get(connection, seq, row.round)
    if current is None or RoundStatus(current.status).final:
        open_next(connection, row, now)
    elif current.status == _SAMPLING:
        draw(connection, row, current, now)
    elif current.status == _COLLECTING and not close_if_complete(connection, row, current, now):
        _end_if_deserted(connection, row, current, now)


def open_next(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    """Open the next round of a federation, or complete it if it has had all its rounds."""
    spec = spec_of(row)
    if spec.rounds is not None and rounds.count(connection, row.seq, RoundStatus.PUBLISHED) >= spec.rounds:
        _discard(
            connection, federation_updates.waiting(connection, row.seq), "The federation has had all its rounds.", now
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
        draw(connection, row, opened, now)
    return row


def draw(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> None:
    """Draw who takes part in a round, take in what waits for one, and close it if that is enough."""
    spec = spec_of(row)
    drawn = _drawn(row, spec, current.number, task_parts.may_come(connection, row))
    named = None if drawn is None else orjson.dumps(drawn).decode()
    collecting = rounds.move(connection, current, RoundReason.SAMPLED, now, values={"participants": named})
    assert collecting is not None, "the federation is locked"
    taken = [each for each in federation_updates.waiting(connection, row.seq) if takes(collecting, each.worker)]
    if taken:
        changes = {"state": COUNTED, "round": collecting.number, "reason": None}
        federation_updates.change(connection, [each.seq for each in taken], changes)
        collecting = rounds.change(connection, collecting, {"deadline_at": now + spec.deadline_s})
    if not close_if_complete(connection, row, collecting, now):
        _end_if_deserted(connection, row, collecting, now)


def _drawn(row: FederationRow, spec: FederationSpec, number: int, left: list[str] | None) -> list[str] | None:
    if spec.participants is None:
        return None
    names = sorted(spec.participants) if left is None else left
    if spec.max_workers is None or len(names) <= spec.max_workers:
        return names
    # The same draw at each look, whoever looks.
    return sorted(random.Random(f"{row.id}/{number}").sample(names, spec.max_workers))


def takes(current: RoundRow, worker: str) -> bool:
    """Whether a round takes a worker's update now."""
    if current.status != _COLLECTING:
        return False
    names = participants(current)
    return names is None or worker in names


def participants(current: RoundRow) -> tuple[str, ...] | None:
    """Return who takes part in a round; null if whoever comes does, or nobody is drawn yet."""
    return None if current.participants is None else tuple(orjson.loads(current.participants))


def close_if_complete(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> bool:
    """Close a round that has all that it waited for, or enough of it at its deadline."""
    reason = _why_closed(connection, row, current, now)
    if reason is None:
        return False
    _close(connection, row, current, reason, now)
    return True


def has_all_it_awaits(connection: Connection, seq: int) -> bool:
    """Whether the round of a training's parts has all that it waits for: one that it waited for may be queued again."""
    row = federations.by_seq(connection, seq)
    current = None if row is None else rounds.get(connection, seq, row.round)
    if row is None or current is None or current.status != _COLLECTING:
        return False
    return _why_closed(connection, row, current, 0.0) is not None


def _why_closed(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> RoundReason | None:
    """Return why a round is to be closed now; null if it waits."""
    if row.status != RUNNING:
        return None
    here = federation_updates.counted_workers(connection, row.seq, current.number)
    if len(here) < spec_of(row).min_workers:
        return None
    names = participants(current)
    if names is None or here.issuperset(task_parts.awaited(connection, row, names)):
        return RoundReason.ALL_HERE
    return RoundReason.DEADLINE if current.deadline_at is not None and current.deadline_at <= now else None


def _end_if_deserted(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> None:
    """Complete a federation of whose parts too few are left for another round."""
    spec = spec_of(row)
    if row.status == RUNNING and task_parts.is_deserted(connection, row, current.number, spec.min_workers):
        left = any(not status.final for status in (task_parts.statuses(connection, row) or {}).values())
        why = f"Fewer than {spec.min_workers} parts were left." if left else "All parts have ended."
        abandon(connection, row, RoundReason.FEDERATION_ENDED, why, now)
        move(connection, row, FederationStatus.COMPLETED, now)


def close_now(connection: Connection, row: FederationRow, now: float) -> RoundRow:
    """Close the open round of a federation because somebody wants its version now."""
    if row.status != RUNNING:
        raise ConflictError(f"The federation {row.id} is {row.status}.", hint=how_to_start(row))
    current = rounds.get(connection, row.seq, row.round)
    assert current is not None, "a federation that runs has a round"
    if current.status != _COLLECTING:
        return current
    spec = spec_of(row)
    here = federation_updates.counted_workers(connection, row.seq, current.number)
    needed = max(spec.strategy.min_updates, min(2, spec.min_workers))
    if len(here) < needed:
        raise ConflictError(
            f"Round {current.number} of {row.id} has {len(here)} updates; it takes {needed} to aggregate them.",
            hint=f"Wait for more workers to upload; `tunefleet federation show {row.id}` lists who has.",
        )
    return _close(connection, row, current, RoundReason.ASKED_FOR, now)


def _close(connection: Connection, row: FederationRow, current: RoundRow, reason: RoundReason, now: float) -> RoundRow:
    closed = rounds.move(connection, current, reason, now)
    assert closed is not None, "the federation is locked"
    tell(connection, row, "federation.round_closed", now, round=closed.number, reason=reason.value)
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

    If one update is to blame, it is rejected and the others count in the next round. Else nobody knows whose fault it
    was, and all of them are put aside: the same ones would fail again.

    Returns:
        False if the round is somebody else's by now: nothing was changed.
    """
    failed = rounds.move(connection, current, reason, now, holder=holder, error=error)
    if failed is None:
        return False
    counted = federation_updates.of_round(connection, row.seq, current.number, [COUNTED])
    if blamed is None:
        _discard(connection, counted, f"Round {current.number} failed: {error}", now)
        # The same weights may come again at another step, should the fault lie elsewhere.
        federations.forget_values(connection, row.seq, [each.worker for each in counted])
    else:
        settled = {"state": REJECTED, "reason": error, "settled_at": now}
        federation_updates.change(connection, [blamed.seq], settled)
        artifacts.unpin(connection, [blamed.holder])
        _carry_over(connection, row, [each for each in counted if each.seq != blamed.seq], now)
    artifacts.unpin(connection, [result_holder(row.id, current.number)])
    about: dict[str, Any] = {"round": current.number, "reason": reason.value, "error": error}
    tell(connection, row, "federation.round_failed", now, **about, took_s=lasted(current, now))
    open_next(connection, row, now)
    return True


def lasted(row: RoundRow, now: float) -> float:
    """Return for how many seconds a round has been open; none, should the clock have been set back."""
    return round(max(0.0, now - row.opened_at), 3)


def _carry_over(connection: Connection, row: FederationRow, carried: Sequence[UpdateRow], now: float) -> None:
    """Let updates wait for the next round, but for those whose workers have sent a newer one meanwhile."""
    newer = {each.worker: each for each in federation_updates.waiting(connection, row.seq)}
    left = [each for each in carried if each.worker not in newer]
    for each in carried:
        if each.worker in newer:
            _give_way(connection, row, each, newer[each.worker], now)
    federation_updates.change(connection, [each.seq for each in left], {"state": WAITING, "round": None})


def _give_way(connection: Connection, row: FederationRow, older: UpdateRow, newer: UpdateRow, now: float) -> None:
    # The newer one was to count after it, and does not weigh its rows yet.
    rows = rows_of_both(connection, row, older, newer)
    federation_updates.change(connection, [newer.seq], {"num_examples": rows})
    supersede(connection, older, newer.seq, now)


def supersede(connection: Connection, older: UpdateRow, by: int, now: float) -> None:
    """Note that a newer update of its worker has taken the place of an older one."""
    changes = {"state": SUPERSEDED, "reason": federation_updates.replacement(by), "settled_at": now}
    federation_updates.change(connection, [older.seq], changes)
    artifacts.unpin(connection, [older.holder])


def abandon(connection: Connection, row: FederationRow, reason: RoundReason, why: str, now: float) -> None:
    """Give up the open round of a federation, and all that has come for it or for the next one."""
    current = rounds.get(connection, row.seq, row.round)
    if current is not None and not RoundStatus(current.status).final:
        rounds.move(connection, current, reason, now, error=why)
        _discard(connection, federation_updates.of_round(connection, row.seq, current.number, [COUNTED]), why, now)
        artifacts.unpin(connection, [result_holder(row.id, current.number)])
    _discard(connection, federation_updates.waiting(connection, row.seq), why, now)


def result_holder(federation_id: str, number: int) -> str:
    """Return who pins the files that a round has made and not published yet."""
    return f"{federation_id}-round-{number}"


def _discard(connection: Connection, given_up: Sequence[UpdateRow], why: str, now: float) -> None:
    changes = {"state": DISCARDED, "reason": why, "settled_at": now}
    federation_updates.change(connection, [each.seq for each in given_up], changes)
    artifacts.unpin(connection, [each.holder for each in given_up])
