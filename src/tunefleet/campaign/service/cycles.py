"""Open, advance and fail cycles, all in the caller's transaction; `backwards` handles retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from tunefleet.campaign.service.cycle_state import CycleState
from tunefleet.campaign.service.status import await_person, parsed, readable, tell
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, cycles
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.campaigns.cycles import CycleRow, StepRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.cycle import NEEDS_YOU, CampaignStatus, CycleStatus, StepName, StepStatus, move_cycle
from tunefleet.orchestrator.notifications.messages import spell_until

FIRST_PAUSE_S: Final = 60.0
MAX_PAUSE_S: Final = 3600.0
_JITTER: Final = 0.1


def backoff_s(tries: int, draw: float) -> float:
    """Return the exponential backoff after consecutive failures, in seconds.

    Args:
        draw: Random number from -1 to 1: jitter of 10%, so that campaigns that failed together do not retry together.
    """
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16), MAX_PAUSE_S) * (1 + _JITTER * draw)


def next_to_do(connection: Connection, row: CampaignRow, now: float) -> CycleRow | None:
    """Return the cycle to work on now, opening the next one if it is due; None if there is none."""
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
    """Whether a cycle has used up its chunk: a model was trained on it and paid for.

    A cycle in which no model could be selected leaves its chunk to the next one; one that was stopped after training
    does not.
    """
    done = {each.step for each in steps_of(connection, cycle) if each.status == StepStatus.DONE}
    given_up = cycle.status == CycleStatus.ABANDONED and StepName.WAIT in done
    return StepName.SELECT in done or StepName.SLEEP in done or given_up


def state_of(connection: Connection, row: CampaignRow, cycle: CycleRow) -> CycleState:
    """Return the engine's view of a cycle."""
    steps = {each.step: each for each in cycles.steps(connection, row.seq, [cycle.number])}
    current = steps.get(cycle.step)
    outcomes = {
        StepName(each.step): orjson.loads(each.outcome or "{}")
        for each in steps.values()
        if each.status == StepStatus.DONE
    }
    # The budget applies as it is now; the rest of the spec as it was when the cycle opened.
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
    """Return the external state that an unfinished step has kept, as JSON."""
    return None if step.status == StepStatus.DONE else step.outcome


def intend(connection: Connection, row: CampaignRow, cycle: CycleRow, intent: Mapping[str, Any], now: float) -> None:
    """Store what the current step of a cycle is about to do.

    Raises:
        ConflictError: If a different intent is already stored.
    """
    known = _step(connection, cycle)
    text = orjson.dumps(dict(intent), option=orjson.OPT_SORT_KEYS).decode()
    if known is not None and known.intent is not None and known.intent != text:
        raise ConflictError(
            f"The step {cycle.step} of cycle {cycle.number} of {row.name} already has a different intent.",
            hint="It continues with the stored one.",
        )
    begun_at = now if known is None else known.begun_at
    kept = None if known is None else kept_of(known)
    cycles.put_step(
        connection,
        StepRow(row.seq, cycle.number, cycle.step, StepStatus.INTENDED.value, text, kept, None, begun_at, None),
    )


def keep(connection: Connection, cycle: CycleRow, kept: Mapping[str, Any]) -> None:
    """Store the current step's state of an external job; it survives failures and retries until the step is done."""
    known = _step(connection, cycle)
    assert known is not None, "a step acts only after its intent is stored"
    cycles.put_step(connection, known._replace(outcome=orjson.dumps(dict(kept)).decode()))


def advance(
    connection: Connection, row: CampaignRow, cycle: CycleRow, outcome: Mapping[str, Any], now: float
) -> CycleRow | None:
    """Store the outcome of the current step and move to the next one; None after the last."""
    known = _step(connection, cycle)
    begun_at, intent = (now, None) if known is None else (known.begun_at, known.intent)
    text = orjson.dumps(dict(outcome)).decode()
    cycles.put_step(
        connection, StepRow(row.seq, cycle.number, cycle.step, StepStatus.DONE.value, intent, text, None, begun_at, now)
    )
    tell(connection, row, "campaign.step", now, cycle=cycle.number, step=cycle.step)
    # In the same transaction as the outcome, so that no tracker is missed after a crash.
    for tracker in outcome.get("trackers", ()):
        cycles.enter_tracking(connection, row.seq, cycle.number, tracker, now)
    done = {each.step for each in steps_of(connection, cycle) if each.status == StepStatus.DONE}
    # A cycle that was moved back skips the later steps whose outcome it has kept.
    step = next((each for each in StepName(cycle.step).and_later if each.value not in done), None)
    changes: dict[str, Any] = {"tries": 0, "not_before": 0.0, "waiting": None, "error": None, "activity": None}
    if step is not None:
        return changed(connection, cycle, {**changes, "step": step.value})
    status = move_cycle(CycleStatus(cycle.status), CycleStatus.COMPLETED)
    changed(connection, cycle, {**changes, "status": status.value, "finished_at": now})
    campaign_changes: dict[str, Any] = {"failures": 0}
    if cycle.step == StepName.SLEEP:
        campaign_changes |= {"next_at": float(outcome["next_at"])}
    campaigns.change(connection, row, campaign_changes)
    tell(connection, row, "campaign.cycle_completed", now, cycle=cycle.number, took_s=lasted(cycle, now))
    return None


def lasted(row: CycleRow, now: float) -> float:
    """Return how long a cycle has been open, in seconds; 0 if the clock was set back."""
    return round(max(0.0, now - row.opened_at), 3)


def wait(connection: Connection, cycle: CycleRow, *, until: float, why: str) -> None:
    """Let the current step of a cycle wait; this resets its count of consecutive failures."""
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
    """Count a failure of the current step: retry later, fail the cycle, or hold the campaign.

    Returns:
        The log line: the error, what happens next and when.
    """
    _record_failure(connection, cycle, error, now)
    most = parsed(row.spec).budget.max_failures
    where = f"The step {cycle.step} of cycle {cycle.number}"
    if fatal:
        failures = row.failures + 1
        status = move_cycle(CycleStatus(cycle.status), CycleStatus.FAILED).value
        # An earlier attempt may have placed the order although its response was lost.
        left = cycle.step == StepName.SUBMIT and cycle.tries > 0
        shown = {"status": status, "error": error, "waiting": None, "to_cancel": int(left)}
        changed(connection, cycle, {**shown, "tries": cycle.tries + 1, "finished_at": now})
        # A held campaign continues when a user resumes it, and then without a backoff.
        next_at = row.next_at if hold else max(row.next_at, now + backoff_s(failures, draw))
        values = {"failures": failures, "next_at": next_at}
        row = campaigns.change(connection, row, values)
        held = hold or failures >= most
        where_to = {"cycle": cycle.number, "step": cycle.step}
        tell(connection, row, "campaign.failed", now, **where_to, error=error, held=held or None)
        why = error if hold else _with_count(f"{failures} cycles failed in a row. {where} failed", error)
        then = f"The next cycle opens in {spell_until(next_at, now)}."
    else:
        tries = cycle.tries + 1
        again_at = now + backoff_s(tries, draw)
        retry = {"tries": tries, "error": error, "waiting": None, "activity": None}
        changed(connection, cycle, {**retry, "not_before": again_at})
        tell(connection, row, "campaign.retrying", now, cycle=cycle.number, step=cycle.step, tries=tries, error=error)
        held = tries >= most
        why = _with_count(f"{where} failed {tries} times in a row", error)
        then = f"Failure {tries} of {most}; retrying in {spell_until(again_at, now)}."
    if row.status != CampaignStatus.ACTIVE:
        return f"{error} The campaign is {row.status}."
    if held:
        row = await_person(connection, row, now, why, verb="start" if hold else "retry")
        return f"The campaign is held. {row.reason}"
    return f"{error} {then}"


def _with_count(counted: str, error: str) -> str:
    """Join a count of failures and the last error; an error with a command for the user comes first."""
    return f"{error} {counted}." if error.startswith(NEEDS_YOU) else f"{counted}: {error}"


def _record_failure(connection: Connection, cycle: CycleRow, error: str, now: float) -> None:
    known = _step(connection, cycle)
    begun_at, intent = (now, None) if known is None else (known.begun_at, known.intent)
    failed, kept = StepStatus.FAILED.value, None if known is None else kept_of(known)
    row = StepRow(cycle.campaign_seq, cycle.number, cycle.step, failed, intent, kept, error, begun_at, None)
    cycles.put_step(connection, row)


def steps_of(connection: Connection, cycle: CycleRow) -> list[StepRow]:
    """Return the steps of a cycle that have started."""
    return cycles.steps(connection, cycle.campaign_seq, [cycle.number])


def _step(connection: Connection, cycle: CycleRow) -> StepRow | None:
    return next((each for each in steps_of(connection, cycle) if each.step == cycle.step), None)


def changed(connection: Connection, cycle: CycleRow, values: Mapping[str, Any]) -> CycleRow:
    """Update a cycle whose campaign is locked, and return it."""
    changed = cycles.change(connection, cycle, values)
    assert changed is not None, "the campaign is locked"
    return changed
