"""Abandon or retry cycles, or move them back to an earlier step; all in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import orjson

from tunefleet.campaign.service.cycle_state import CycleState
from tunefleet.campaign.service.cycles import changed, kept_of, lasted, state_of, steps_of
from tunefleet.campaign.service.status import tell
from tunefleet.db import Connection
from tunefleet.db.campaigns import cycles
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.lifecycle.cycle import CycleStatus, StepName, StepStatus, move_cycle

# Steps whose retry starts at an earlier step: a failed task is ordered again with its data uploaded again, and models
# of which none could be selected are evaluated again.
RETRIED_FROM: Final = {StepName.WAIT: StepName.UPLOAD, StepName.SELECT: StepName.EVALUATE}


def is_held(row: CampaignRow, now: float) -> bool:
    """Whether a campaign has a holder with a valid lease."""
    return row.holder is not None and row.lease_until > now


def forget_failures(connection: Connection, row: CampaignRow, now: float) -> None:
    """Retry the failed steps of running cycles immediately, with the campaign's newest spec."""
    # `retried` changes the idempotency keys: under the old keys the server would return the recorded failure. A step
    # with an active holder is left alone.
    for cycle in cycles.running(connection, row.seq):
        if cycle.tries and not is_held(row, now):
            again = {"tries": 0, "not_before": 0.0, "retried": cycle.retried + 1}
            changed(connection, cycle, {**again, "spec": row.spec})


def abandon(connection: Connection, row: CampaignRow, now: float) -> None:
    """Abandon the running cycles of a campaign; mark their tasks for cancellation and their uploads for removal."""
    # Cancellation waits for the holder's lease to end: the holder may still be placing the order, and notices the stop
    # only when it renews the lease.
    free_at = row.lease_until if is_held(row, now) else now
    for cycle in cycles.running(connection, row.seq):
        begun = {each.step: each.status for each in steps_of(connection, cycle)}
        status = move_cycle(CycleStatus(cycle.status), CycleStatus.ABANDONED)
        sent = StepName.UPLOAD in begun or StepName.SUBMIT in begun
        left = sent and begun.get(StepName.WAIT) != StepStatus.DONE
        changes = {"status": status.value, "finished_at": now, "waiting": None, "to_cancel": int(left)}
        changed(connection, cycle, {**changes, "not_before": free_at})
        tell(connection, row, "campaign.abandoned", now, cycle=cycle.number, took_s=lasted(cycle, now))


def go_back(
    connection: Connection,
    row: CampaignRow,
    cycle: CycleRow,
    step: StepName,
    *,
    keep: Collection[StepName] = (),
) -> CycleRow:
    """Move a cycle back to a step, with the campaign's newest spec.

    A finished `SLEEP` is not repeated. A `SUBMIT` without outcome keeps its intent, because it may have acted. State of
    external jobs that a step has kept is preserved.
    """
    known = {StepName(each.step): each for each in steps_of(connection, cycle)}
    submit = known.get(StepName.SUBMIT)
    slept = StepName.SLEEP in known and known[StepName.SLEEP].status == StepStatus.DONE
    dropped = set(step.and_later) - set(keep) - ({StepName.SLEEP} if slept else set())
    ordered = StepName.SUBMIT in dropped and submit is not None
    again = ordered and submit is not None and submit.status == StepStatus.DONE
    if ordered and not again:
        dropped.discard(StepName.SUBMIT)
    cycles.drop_steps(connection, row.seq, cycle.number, sorted(dropped))
    for each in known.values():
        if each.step in dropped and kept_of(each) is not None:
            cycles.put_step(connection, each._replace(status=StepStatus.INTENDED.value, intent=None, error=None))
    waited = known.get(StepName.WAIT)
    over = cycle.status != CycleStatus.RUNNING or (waited is not None and waited.status == StepStatus.DONE)
    if again and submit is not None and not over:
        # The earlier task is still running, and is cancelled before another one is ordered.
        earlier = orjson.dumps({"earlier": orjson.loads(submit.outcome or "{}")}).decode()
        intended = StepStatus.INTENDED.value
        cycles.put_step(connection, submit._replace(status=intended, intent=None, outcome=earlier, finished_at=None))
    changes: dict[str, Any] = {
        "step": step.value,
        "tries": 0,
        "not_before": 0.0,
        "waiting": None,
        "error": None,
        "retried": cycle.retried + 1,
        "orders": cycle.orders + again,
        "spec": row.spec,
        "finished_at": None,
        "to_cancel": 0,
    }
    if cycle.status != CycleStatus.RUNNING:
        changes["status"] = move_cycle(CycleStatus(cycle.status), CycleStatus.RUNNING).value
    return changed(connection, cycle, changes)


def ended_task(connection: Connection, row: CampaignRow, cycle: CycleRow) -> CycleState:
    """Return an abandoned cycle at the step whose task may still be running, or else at `UPLOAD`."""
    ordered = {each.step: each for each in steps_of(connection, cycle)}.get(StepName.SUBMIT)
    if ordered is None or (ordered.intent is None and kept_of(ordered) is None):
        step = StepName.UPLOAD
    else:
        step = StepName.WAIT if ordered.status == StepStatus.DONE else StepName.SUBMIT
    return state_of(connection, row, cycle._replace(step=step.value))
