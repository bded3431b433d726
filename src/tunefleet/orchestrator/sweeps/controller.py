"""The controller of sweeps: starts trials, asks the pruner, stops trials, and ends sweeps.

It runs on the leader and keeps nothing in memory: each cycle starts from the stored trials and runs. A trial is stored
in one transaction with its run, so that none is lost or started twice, whenever the server is killed. Runs continue
while there is no server; their evaluations are judged once it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import sweeps, tasks
from tunefleet.db.repositories.sweeps import SweepRow, TrialRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, InputError, NotFoundError, SpecError, TunefleetError, UnreachableError
from tunefleet.lifecycle.sweep import SweepStatus, TrialState
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.sweeps import study, trials
from tunefleet.orchestrator.sweeps.status import TOPIC, best_of, move, spec_of
from tunefleet.orchestrator.sweeps.study import Suggestion
from tunefleet.orchestrator.sweeps.trials import Observations
from tunefleet.orchestrator.tasks import control
from tunefleet.orchestrator.tasks import tasks as task_actions
from tunefleet.orchestrator.workflows import workflows
from tunefleet.orchestrator.workflows.submission import Submission
from tunefleet.schemas.api import CommandRequest
from tunefleet.schemas.control import ControlCommand
from tunefleet.spec import override_document, parse_workflow
from tunefleet.spec.documents.sweep_checks import evaluations
from tunefleet.spec.options.sweep import SweepSpec
from tunefleet.spec.options.training_options import GROUPING_TRACKERS

log = logging.getLogger(__name__)

# While a sweep is active: how soon an evaluation is judged, and a free slot gets the next trial.
LOOK_S: Final = 1.0
IDLE_S: Final = 30.0
_HOUR_S: Final = 3600.0


class SweepController:
    """Runs the active sweeps of a server."""

    def __init__(self, core: ServerContext) -> None:
        self._core = core

    async def run_once(self) -> None:
        """Advance all active sweeps, then wait until there may be something to do."""
        signals = self._core.signals
        seen = signals.version(TOPIC)
        found = await self._core.read(sweeps.active)
        for row in found:
            await self._try(row)
        await signals.wait(TOPIC, LOOK_S if found else IDLE_S, seen)

    async def _try(self, row: SweepRow) -> None:
        try:
            await self._advance(row)
        except UnreachableError:
            raise
        except TunefleetError as error:
            # Such as a storage quota or an uploaded file that was removed: the sweep waits, and says for what.
            if error.message != row.reason:
                log.warning("%s waits: %s", row.id, error)
                await self._core.write(partial(_note, seq=row.seq, reason=error.message))
        except Exception:
            # One unreadable sweep, for example after an upgrade, must not block the others.
            log.exception("Advancing %s failed; retrying.", row.id)

    async def _advance(self, row: SweepRow) -> None:
        core, spec = self._core, spec_of(row)
        now = core.clock.wall()
        seen = await core.read(partial(_observe, row=row, spec=spec, now=now))
        changed = await asyncio.to_thread(_judged, row, spec, seen)
        row, rows = await core.write(partial(_store, seq=row.seq, spec=spec, changed=changed, seen=seen, now=now))
        for trial in rows:
            if trial.state in {TrialState.PRUNING, TrialState.STOPPING}:
                await self._stop(row, trial)
        # At most as many as there are free slots: trials that cannot be submitted are counted before the next ones.
        for _ in range(_wanted(row, spec, rows)):
            rows = await self._start(row, spec, rows)
            if not rows:
                break

    async def _stop(self, row: SweepRow, trial: TrialRow) -> None:
        """Have a trial's run end at its next step and keep its result; one that does not train is cancelled."""
        core, actor = self._core, _actor(row)
        assert trial.task_id is not None, "an open trial has a run"
        run = (await core.read(lambda connection: tasks.by_ids(connection, [trial.task_id or ""]))).get(trial.task_id)
        if run is None or TaskStatus(run.status).final:
            return
        # One command per attempt: the same request again returns it, and another attempt gets its own.
        command_id = f"cmd-{row.id}-{trial.number}-{run.attempts}"
        request = CommandRequest(command=ControlCommand.GRACEFUL_STOP, command_id=command_id)
        try:
            await control.command(core, actor, run.id, request)
        except ConflictError:
            # It is queued, starting or paused, or its job supports no commands.
            try:
                await task_actions.cancel(core, actor, run.id)
            except ConflictError:
                log.info("%s ended before it was stopped.", run.id)

    async def _start(self, row: SweepRow, spec: SweepSpec, rows: Sequence[TrialRow]) -> list[TrialRow]:
        """Start the next trial: store it with its run.

        Returns:
            All trials; none if the sweep was stopped in the meantime.
        """
        core = self._core
        suggestion = await asyncio.to_thread(study.suggest, spec, rows)
        now = core.clock.wall()
        trial = _new_trial(row, suggestion, now)
        try:
            submission = await asyncio.to_thread(_submission, row, suggestion)
            await workflows.store(core, submission, then=partial(_add_with_run, trial=trial))
        except _SweepEnded:
            return []
        except (SpecError, InputError) as error:
            # Each value was valid, but not all of them together.
            text = error.faults[0].message if isinstance(error, SpecError) else error.message
            failed = trial._replace(state=TrialState.FAILED.value, error=text, finished_at=now)
            await core.write(partial(_add, trial=failed))
        return (await core.read(partial(_load, seq=row.seq)))[1]


class _SweepEnded(ConflictError):
    """The sweep was stopped or removed while its next trial was prepared."""


def _actor(row: SweepRow) -> Actor:
    return Actor(row.id, row.owner, "member", row.project)


def _observe(connection: Connection, *, row: SweepRow, spec: SweepSpec, now: float) -> Observations:
    return trials.observe(connection, spec, sweeps.trials(connection, [row.seq]).get(row.seq, []), now)


def _judged(row: SweepRow, spec: SweepSpec, seen: Observations) -> list[TrialRow]:
    """Return the changed trials, with the decisions of the pruner."""
    rows = {each.number: each for each in seen.rows}
    changed = []
    complete = None
    if spec.pruner is not None and spec.pruner.name == "hyperband":
        complete = evaluations(spec.pruner, parse_workflow(row.document).tasks[0].spec)
    for found in seen.found:
        trial = found.row
        if spec.pruner is not None and found.new:
            before = [rows[number] for number in sorted(rows)]
            values = [value for _, value in found.new]
            prune, attributes = study.judge(spec, before, trial.number, values, complete)
            trial = trial._replace(attributes=orjson.dumps(attributes).decode())
            if prune and not found.complete and trial.state == TrialState.RUNNING:
                trial = trial._replace(state=TrialState.PRUNING.value)
        trial = trials.with_evaluations(trial, found.new)
        if trial != rows[trial.number]:
            changed.append(trial)
        rows[trial.number] = trial
    return changed


def _store(
    connection: Connection, *, seq: int, spec: SweepSpec, changed: Sequence[TrialRow], seen: Observations, now: float
) -> tuple[SweepRow, list[TrialRow]]:
    """Store changed trials, and end the sweep if it is over."""
    sweeps.store_trials(connection, changed)
    row, rows = _load(connection, seq=seq, lock=True)
    row = _limited(connection, row, spec, rows, seen, now)
    if row.status == SweepStatus.STOPPING:
        stopping = [each._replace(state=TrialState.STOPPING.value) for each in rows if each.state == TrialState.RUNNING]
        sweeps.store_trials(connection, stopping)
        rows = sweeps.trials(connection, [seq]).get(seq, [])
    if all(TrialState(each.state).final for each in rows):
        row = _ended(connection, row, spec, rows, now)
    return row, rows


def _limited(
    connection: Connection, row: SweepRow, spec: SweepSpec, rows: Sequence[TrialRow], seen: Observations, now: float
) -> SweepRow:
    """Have a running sweep end if a limit is reached."""
    if row.status != SweepStatus.RUNNING:
        return row
    failures = [each for each in rows if each.state == TrialState.FAILED]
    mistake = next((each.row for each in seen.found if each.mistake and not _names_parameter(each.row)), None)
    outcome, reason = SweepStatus.FAILED, None
    if mistake is not None and not any(orjson.loads(each.evaluations) for each in rows):
        reason = f"Trial {mistake.number} failed because of its workflow file: {mistake.error}"
    elif len(failures) > spec.max_failures:
        reason = (
            f"{len(failures)} trials failed (max_failures: {spec.max_failures}); the last one: {failures[-1].error}"
        )
    elif spec.max_hours is not None and now - row.created_at >= spec.max_hours * _HOUR_S:
        outcome, reason = SweepStatus.COMPLETED, f"The budget of {spec.max_hours:g} hours is used up."
    elif spec.max_gpu_hours is not None and seen.gpu_s >= spec.max_gpu_hours * _HOUR_S:
        outcome, reason = SweepStatus.COMPLETED, f"The budget of {spec.max_gpu_hours:g} GPU hours is used up."
    if reason is None:
        return row
    return move(connection, row, SweepStatus.STOPPING, now, reason=reason, outcome=outcome)


def _names_parameter(row: TrialRow) -> bool:
    """Whether the error of a trial is about one of its own values, and not about the file that all trials share."""
    parameters: dict[str, object] = orjson.loads(row.parameters)
    texts = [each for each in parameters.values() if isinstance(each, str)]
    return any(each in (row.error or "") for each in (*parameters, *texts))


def _ended(connection: Connection, row: SweepRow, spec: SweepSpec, rows: Sequence[TrialRow], now: float) -> SweepRow:
    """End a sweep without open trials, if it starts no further one."""
    if row.status == SweepStatus.STOPPING:
        assert row.outcome is not None, "set with this status"
        target = SweepStatus(row.outcome)
    elif row.status == SweepStatus.RUNNING and len(rows) >= spec.total:
        target = SweepStatus.COMPLETED
    else:
        return row
    if target is SweepStatus.COMPLETED and best_of(spec, rows) is None:
        reason = " ".join(filter(None, (row.reason, "No trial completed.")))
        return move(connection, row, SweepStatus.FAILED, now, reason=reason)
    return move(connection, row, target, now)


def _wanted(row: SweepRow, spec: SweepSpec, rows: Sequence[TrialRow]) -> int:
    """Return how many trials to start now."""
    if row.status != SweepStatus.RUNNING:
        return 0
    running = sum(not TrialState(each.state).final for each in rows)
    return max(0, min(spec.parallel - running, spec.total - len(rows)))


def _new_trial(row: SweepRow, suggestion: Suggestion, now: float) -> TrialRow:
    return TrialRow(
        row.seq, suggestion.number, TrialState.RUNNING.value, None, orjson.dumps(suggestion.parameters).decode(),
        orjson.dumps(suggestion.attributes).decode(), "[]", None, None, 0.0, None, now, None,
    )  # fmt: skip


def _submission(row: SweepRow, suggestion: Suggestion) -> Submission:
    """Return the workflow of a trial."""
    name = f"{row.name}-{suggestion.number}"
    overrides = {**suggestion.parameters, "metadata.name": name}
    training = getattr(parse_workflow(row.document).tasks[0].spec, "training", None)
    if training is not None and training.group is None and {*training.trackers} & {*GROUPING_TRACKERS}:
        overrides["training.group"] = row.name
    text = override_document(row.document, overrides)
    try:
        workflow = parse_workflow(text)
    except SpecError as error:
        # No line: it is a text that the user has not written.
        raise SpecError([replace(fault, line=0, column=0) for fault in error.faults]) from None
    return Submission(_actor(row), workflow, text, {workflow.tasks[0].name: orjson.loads(row.inputs)})


def _add_with_run(connection: Connection, rows: list[TaskRow], now: float, *, trial: TrialRow) -> None:
    """Store a trial in the transaction that stores its run."""
    _add(connection, trial=trial._replace(task_id=rows[0].id, created_at=now))
    sweep = sweeps.by_seq(connection, trial.sweep_seq)
    assert sweep is not None, "checked by `_add`"
    tasks.add_tags(connection, rows[0].seq, [sweep.id])
    if sweep.reason is not None:
        sweeps.change(connection, sweep, {"reason": None})


def _add(connection: Connection, *, trial: TrialRow) -> None:
    sweep = sweeps.by_seq(connection, trial.sweep_seq, lock=True)
    if sweep is None or sweep.status != SweepStatus.RUNNING:
        raise _SweepEnded("The sweep has ended.")
    sweeps.add_trial(connection, trial)


def _load(connection: Connection, *, seq: int, lock: bool = False) -> tuple[SweepRow, list[TrialRow]]:
    row = sweeps.by_seq(connection, seq, lock=lock)
    if row is None:
        raise NotFoundError("The sweep was removed.")
    return row, sweeps.trials(connection, [seq]).get(seq, [])


def _note(connection: Connection, *, seq: int, reason: str) -> None:
    """Store what a sweep waits for."""
    row = sweeps.by_seq(connection, seq)
    if row is not None and row.status == SweepStatus.RUNNING:
        sweeps.change(connection, row, {"reason": reason})
