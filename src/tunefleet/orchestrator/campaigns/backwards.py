"""Cycles that are given up, tried again or go back to an earlier step; all in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.campaigns import cycles
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.lifecycle.cycle import CycleStatus, StepName, StepStatus, move_cycle
from tunefleet.orchestrator.campaigns.cycle_state import CycleState
from tunefleet.orchestrator.campaigns.cycles import changed, kept_of, lasted, state_of, steps_of
from tunefleet.orchestrator.campaigns.status import tell

# Where a retry begins if it is not at the step that failed: a task that failed is ordered anew, with its data sent
# anew; models among which none could be chosen are measured anew.
RETRIED_FROM: Final = {StepName.WAIT: StepName.UPLOAD, StepName.SELECT: StepName.EVALUATE}


def is_held(row: CampaignRow, now: float) -> bool:
    """Whether somebody works on a campaign right now, as far as the lease tells."""
    return row.holder is not None and row.lease_until > now


def forget_failures(connection: Connection, row: CampaignRow, now: float) -> None:
    """Let the running cycles of a campaign try at once what failed, with the campaign's newest spec.

    What failed is asked for under keys of its own, for under the old ones it has failed for good. A step that somebody
    is trying right now is left to them.
    """
    for cycle in cycles.running(connection, row.seq):
        if cycle.tries and not is_held(row, now):
            again = {"tries": 0, "not_before": 0.0, "retried": cycle.retried + 1}
            changed(connection, cycle, {**again, "spec": row.spec})


def abandon(connection: Connection, row: CampaignRow, now: float) -> None:
    """Give up every cycle of a campaign that runs; its task is to be cancelled, and what was uploaded for it removed.

    Not while somebody may still be placing the order, who learns of it only when they renew their lease.
    """
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
    """Let a cycle go through its steps again from one on, with the campaign's newest spec.

    When it slept already, it does not sleep again: what was drawn stays. A step `SUBMIT` that has no outcome keeps its
    intent, for it may have acted. What a step has kept of something that runs elsewhere stays, too.
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
        # It runs still, and is cancelled before another is placed.
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
    """Return an abandoned cycle at the step whose task may still run, with that step's intent, or else at `UPLOAD`."""
    ordered = {each.step: each for each in steps_of(connection, cycle)}.get(StepName.SUBMIT)
    if ordered is None or (ordered.intent is None and kept_of(ordered) is None):
        step = StepName.UPLOAD
    else:
        step = StepName.WAIT if ordered.status == StepStatus.DONE else StepName.SUBMIT
    return state_of(connection, row, cycle._replace(step=step.value))
