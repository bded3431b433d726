"""Cycles: opened, moved from step to step, and failed; all in the caller's transaction. What goes back: `backwards`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, cycles, tracking_outbox
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.campaigns.cycles import CycleRow, StepRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus, CycleStatus, StepName, StepStatus, move_cycle
from tunefleet.orchestrator.campaigns.cycle_state import CycleState
from tunefleet.orchestrator.campaigns.status import await_person, parsed, readable, tell
from tunefleet.orchestrator.notifications.messages import spell_until

FIRST_PAUSE_S: Final = 60.0
MAX_PAUSE_S: Final = 3600.0
_SPREAD: Final = 0.1


def backoff_s(tries: int, draw: float) -> float:
    """Return how long to wait after so many failures in a row.

    Args:
        draw: From -1 to 1: a tenth less or more, so that campaigns that failed together do not return together.
    """
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16), MAX_PAUSE_S) * (1 + _SPREAD * draw)


def next_to_do(connection: Connection, row: CampaignRow, now: float) -> CycleRow | None:
    """Return the cycle that a campaign is to work on now; the next one is opened if it is due."""
    found = cycles.running(connection, row.seq)
    due = next((each for each in found if each.not_before <= now), None)
    newest_runs = any(each.number == row.cycles - 1 for each in found)
    if due is not None or newest_runs or row.next_at > now:
        return due
    return _open(connection, row, now)


def _open(connection: Connection, row: CampaignRow, now: float) -> CycleRow:
    last = cycles.get(connection, row.seq, row.cycles - 1) if row.cycles else None
    position = 0 if last is None else last.position + _trained(connection, last)
    opened = CycleRow(
        row.seq, row.cycles, position, CycleStatus.RUNNING.value, StepName.DATA.value, 0, 0.0, None, None, 0, 0, 0,
        row.spec, now, None,
    )  # fmt: skip
    cycles.insert_one(connection, opened)
    campaigns.change(connection, row, {"cycles": row.cycles + 1})
    tell(connection, row, "campaign.cycle", now, cycle=opened.number, position=position)
    return opened


def _trained(connection: Connection, cycle: CycleRow) -> bool:
    """Whether a cycle has used up its chunk: there is a model of it that was paid for, whatever became of that.

    A cycle in which no model could be chosen leaves its chunk to the next one; one that somebody has stopped does not,
    once it has trained.
    """
    done = {each.step for each in steps_of(connection, cycle) if each.status == StepStatus.DONE}
    given_up = cycle.status == CycleStatus.ABANDONED and StepName.WAIT in done
    return StepName.SELECT in done or StepName.SLEEP in done or given_up


def state_of(connection: Connection, row: CampaignRow, cycle: CycleRow) -> CycleState:
    """Return a cycle as the engine sees it."""
    steps = {each.step: each for each in cycles.steps(connection, row.seq, [cycle.number])}
    current = steps.get(cycle.step)
    outcomes = {
        StepName(each.step): orjson.loads(each.outcome or "{}")
        for each in steps.values()
        if each.status == StepStatus.DONE
    }
    # What it may spend is what is allowed now, not what was when it opened.
    newest = parsed(row.spec)
    spec = (readable(cycle.spec) or newest).model_copy(update={"budget": newest.budget})
    return CycleState(
        campaign_id=row.id,
        name=row.name,
        owner=row.owner,
        project=row.project,
        spec=spec,
        number=cycle.number,
        position=cycle.position,
        outcomes=outcomes,
        step=StepName(cycle.step),
        intent=None if current is None or current.intent is None else orjson.loads(current.intent),
        tries=cycle.tries,
        not_before=cycle.not_before,
        holder=row.holder or "",
        retried=cycle.retried,
        orders=cycle.orders,
        kept=None if current is None or (kept := kept_of(current)) is None else orjson.loads(kept),
        provider=_provider_in(steps.get(StepName.SUBMIT)),
    )


def _provider_in(submit: StepRow | None) -> str | None:
    if submit is None:
        return None
    order = orjson.loads(submit.intent or "{}")
    earlier = orjson.loads(kept_of(submit) or "{}").get("earlier", {})
    provider: str | None = order.get("provider") or earlier.get("provider")
    return provider


def kept_of(step: StepRow) -> str | None:
    """Return what a step that is not done has kept of something that runs elsewhere, as JSON."""
    return None if step.status == StepStatus.DONE else step.outcome


def intend(connection: Connection, row: CampaignRow, cycle: CycleRow, intent: Mapping[str, Any], now: float) -> None:
    """Store what the current step of a cycle is about to do.

    Raises:
        ConflictError: If it is about to do something else already.
    """
    known = _step(connection, cycle)
    text = orjson.dumps(dict(intent), option=orjson.OPT_SORT_KEYS).decode()
    if known is not None and known.intent is not None and known.intent != text:
        raise ConflictError(
            f"The step {cycle.step} of cycle {cycle.number} of {row.name} intends something else already.",
            hint="It goes on with what is stored.",
        )
    begun_at = now if known is None else known.begun_at
    kept = None if known is None else kept_of(known)
    cycles.put_step(
        connection,
        StepRow(row.seq, cycle.number, cycle.step, StepStatus.INTENDED.value, text, kept, None, begun_at, None),
    )


def keep(connection: Connection, cycle: CycleRow, kept: Mapping[str, Any]) -> None:
    """Store what the current step, which is intended, has to know of something that runs elsewhere.

    It outlives failures and retries of the step, until the step is done.
    """
    known = _step(connection, cycle)
    assert known is not None, "nothing is begun before it is intended"
    cycles.put_step(connection, known._replace(outcome=orjson.dumps(dict(kept)).decode()))


def advance(
    connection: Connection, row: CampaignRow, cycle: CycleRow, outcome: Mapping[str, Any], now: float
) -> CycleRow | None:
    """Store what the current step has done, and go to the next one; null after the last."""
    known = _step(connection, cycle)
    begun_at, intent = (now, None) if known is None else (known.begun_at, known.intent)
    text = orjson.dumps(dict(outcome)).decode()
    cycles.put_step(
        connection, StepRow(row.seq, cycle.number, cycle.step, StepStatus.DONE.value, intent, text, None, begun_at, now)
    )
    tell(connection, row, "campaign.step", now, cycle=cycle.number, step=cycle.step)
    for tracker in outcome.get("trackers", ()):
        tracking_outbox.enter(connection, row.seq, cycle.number, tracker, now)
    done = {each.step for each in steps_of(connection, cycle) if each.status == StepStatus.DONE}
    # A cycle that went back keeps what it does not do again.
    step = next((each for each in StepName(cycle.step).and_later if each.value not in done), None)
    changes: dict[str, Any] = {"tries": 0, "not_before": 0.0, "waiting": None, "error": None, "activity": None}
    if step is not None:
        return changed(connection, cycle, {**changes, "step": step.value})
    status = move_cycle(CycleStatus(cycle.status), CycleStatus.COMPLETED)
    changed(connection, cycle, {**changes, "status": status.value, "finished_at": now})
    rest: dict[str, Any] = {"failures": 0}
    if cycle.step == StepName.SLEEP:
        rest |= {"next_at": float(outcome["next_at"])}
    campaigns.change(connection, row, rest)
    tell(connection, row, "campaign.cycle_completed", now, cycle=cycle.number, took_s=lasted(cycle, now))
    return None


def lasted(row: CycleRow, now: float) -> float:
    """Return for how many seconds a cycle has been open; none, should the clock have been set back."""
    return round(max(0.0, now - row.opened_at), 3)


def wait(connection: Connection, cycle: CycleRow, *, until: float, why: str) -> None:
    """Let the current step of a cycle wait, which ends its failures in a row."""
    changed(connection, cycle, {"not_before": until, "waiting": why, "tries": 0, "error": None})


def fail(
    connection: Connection,
    row: CampaignRow,
    cycle: CycleRow,
    error: str,
    now: float,
    *,
    fatal: bool,
    draw: float,
    hold: bool = False,
) -> str:
    """Count a failure of the current step: try it again later, give the cycle up, or hold the campaign.

    Returns:
        The line of the log: the error, and what comes next and when.
    """
    _note(connection, cycle, error, now)
    most = parsed(row.spec).budget.max_failures
    where = f"The step {cycle.step} of cycle {cycle.number}"
    if fatal:
        failures = row.failures + 1
        status = move_cycle(CycleStatus(cycle.status), CycleStatus.FAILED).value
        # An earlier try may have placed the order after all.
        left = cycle.step == StepName.SUBMIT and cycle.tries > 0
        shown = {"status": status, "error": error, "waiting": None, "to_cancel": int(left)}
        changed(connection, cycle, {**shown, "tries": cycle.tries + 1, "finished_at": now})
        # Who holds it goes on when a person says so, and then at once.
        next_at = row.next_at if hold else max(row.next_at, now + backoff_s(failures, draw))
        values = {"failures": failures, "next_at": next_at}
        row = campaigns.change(connection, row, values)
        held = hold or failures >= most
        where_to = {"cycle": cycle.number, "step": cycle.step}
        tell(connection, row, "campaign.failed", now, **where_to, error=error, held=held or None)
        why = error if hold else _in_a_row(f"{failures} cycles failed in a row. {where} failed", error)
        then = f"The next cycle opens in {spell_until(next_at, now)}."
    else:
        tries = cycle.tries + 1
        again_at = now + backoff_s(tries, draw)
        said = {"tries": tries, "error": error, "waiting": None, "activity": None}
        changed(connection, cycle, {**said, "not_before": again_at})
        tell(connection, row, "campaign.retrying", now, cycle=cycle.number, step=cycle.step, tries=tries, error=error)
        held = tries >= most
        why = _in_a_row(f"{where} failed {tries} times in a row", error)
        then = f"Failure {tries} of {most}; tried again in {spell_until(again_at, now)}."
    if row.status != CampaignStatus.ACTIVE:
        return f"{error} The campaign is {row.status}."
    if held:
        row = await_person(connection, row, now, why, verb="start" if hold else "retry")
        return f"The campaign is held. {row.reason}"
    return f"{error} {then}"


def _in_a_row(counted: str, error: str) -> str:
    """Join a count of failures and the last error; one that says what a person has to type stays in front."""
    return f"{error} {counted}." if error.startswith(NEEDS_YOU) else f"{counted}: {error}"


def _note(connection: Connection, cycle: CycleRow, error: str, now: float) -> None:
    known = _step(connection, cycle)
    begun_at, intent = (now, None) if known is None else (known.begun_at, known.intent)
    failed, kept = StepStatus.FAILED.value, None if known is None else kept_of(known)
    row = StepRow(cycle.campaign_seq, cycle.number, cycle.step, failed, intent, kept, error, begun_at, None)
    cycles.put_step(connection, row)


def steps_of(connection: Connection, cycle: CycleRow) -> list[StepRow]:
    """Return the steps of a cycle that have begun."""
    return cycles.steps(connection, cycle.campaign_seq, [cycle.number])


def _step(connection: Connection, cycle: CycleRow) -> StepRow | None:
    return next((each for each in steps_of(connection, cycle) if each.step == cycle.step), None)


def changed(connection: Connection, cycle: CycleRow, values: Mapping[str, Any]) -> CycleRow:
    """Change columns of a cycle whose campaign is locked, and return it."""
    changed = cycles.change(connection, cycle, values)
    assert changed is not None, "the campaign is locked"
    return changed
