"""Explain a task's status worker by worker, and forecast the placement of a workflow file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, queue
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.errors import Fault, SpecError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet import engines as providers
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.notifications import channels
from tunefleet.orchestrator.preflight import concurrency, memory, model_configs
from tunefleet.orchestrator.preflight.concurrency import Demand
from tunefleet.orchestrator.preflight.model_configs import Configurations
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.tasks import relations, spec_columns, tasks
from tunefleet.orchestrator.views import to_datetime
from tunefleet.orchestrator.workflows import upstreams
from tunefleet.orchestrator.workflows.workflows import fault_views, validate
from tunefleet.placement import (
    Fit,
    Policy,
    Ranking,
    Requirement,
    WorkerState,
    explain,
    lacks,
    only,
    verdict,
)
from tunefleet.schemas.api import SubmitRequest, ValidateReply
from tunefleet.schemas.fleet import ConcurrencyForecast, TaskForecast, WhyView, WorkerVerdict
from tunefleet.spec import BaseTaskSpec, TaskNode, Workflow, parse_workflow
from tunefleet.spec.documents.submit_checks import new_faults, remarks

_ENDED: Final[dict[str, str]] = {
    TaskStatus.FAILED: "has failed",
    TaskStatus.CANCELLED: "was cancelled",
    TaskStatus.SKIPPED: "was skipped",
}


async def of_task(core: ServerContext, actor: Actor, task_id: str) -> WhyView:
    """Return why a task has its status, with the match result of each worker."""
    may_read(actor)
    snapshot, policy = cluster_state.fleet_snapshot(core), scheduler.policy_of(core.settings)

    def operation(connection: Connection) -> WhyView:
        row = tasks.find(connection, actor, task_id)
        fleet = cluster_state.serving(cluster_state.states(connection, snapshot), row.project)
        waits = row.status in {TaskStatus.QUEUED, TaskStatus.PENDING}
        known = cluster_state.needs(connection, [row.requirement_key]) if waits else {}
        need = cluster_state.with_project(known[row.requirement_key], row.project) if known else None
        if need is not None and only(row.id) in need.tags:
            # Workers are started for this task alone; all others would only report the missing tag.
            fleet = [worker for worker in fleet if only(row.id) in worker.tags]
        avoid = cluster_state.avoided(connection, [row.id], snapshot.now).get(row.id, frozenset())
        return WhyView(
            task_id=row.id,
            status=row.status,
            why=cluster_state.reasons(connection, snapshot, [row], fleet).get(row.id) or _status_sentence(row),
            ahead=_ahead(connection, row, need, fleet, snapshot.now) if need and row.status == TaskStatus.QUEUED else 0,
            waits_for=relations.waits_for(connection, row),
            workers=()
            if need is None
            else _with_tasks(
                _match_results(need, fleet, policy, avoid=avoid, task_id=row.id),
                tasks.own(connection, row.project, attempts.all_open(connection)),
            ),
            attempts=_attempt_sentences(connection, row),
        )

    return await core.read(operation)


async def of_document(core: ServerContext, actor: Actor, request: SubmitRequest) -> ValidateReply:
    """Validate a workflow file, and forecast where each task would go now if the queue were empty.

    Referenced tasks and channels are looked up as on submit. Tasks with dependencies are matched against the fleet as
    it is now.
    """
    may_read(actor)
    try:
        workflow = await asyncio.to_thread(parse_workflow, request.document, filename=request.filename)
    except SpecError:
        return await asyncio.to_thread(validate, request.document, request.filename)
    snapshot, policy = cluster_state.fleet_snapshot(core), scheduler.policy_of(core.settings)

    who = channels.Submitter(actor.project, actor.owner, core.settings.smtp_url is not None)

    specs, warnings, needs = await asyncio.to_thread(_read_specs, workflow, actor.project)

    names = tuple(node.name for node in workflow.tasks)

    def operation(
        connection: Connection,
    ) -> tuple[list[Fault], Sequence[WorkerState], Mapping[str, tuple[str, int]]]:
        faults = upstreams.faults_of(connection, actor.project, workflow.tasks)
        faults += channels.subscription_faults(connection, who, ((node, spec.notify) for node, spec in specs))
        faults += providers.engine_faults(core.state(Engines), specs) + new_faults(specs)
        serving = cluster_state.serving(cluster_state.states(connection, snapshot), actor.project)
        return faults, serving, model_configs.uploaded(connection, actor.project, names, request.inputs)

    faults, fleet, uploaded = await core.read(operation)
    if faults:
        return ValidateReply(ok=False, faults=fault_views(faults))
    found, together = await asyncio.to_thread(_forecasts, core, workflow, needs, fleet, policy, uploaded)
    return ValidateReply(ok=True, tasks=names, forecasts=found, concurrency=together, warnings=warnings)


def _read_specs(
    workflow: Workflow, project: str
) -> tuple[list[tuple[TaskNode, BaseTaskSpec]], tuple[str, ...], dict[str, Requirement]]:
    """Return the specs, the warnings and each task's requirement; runs in a thread."""
    specs = [(node, spec_columns.known(node)) for node in workflow.tasks]
    needs = {node.name: cluster_state.with_project(_need(node), project) for node in workflow.tasks}
    return specs, tuple(remarks(specs)), needs


def _forecasts(
    core: ServerContext,
    workflow: Workflow,
    needs: Mapping[str, Requirement],
    fleet: Sequence[WorkerState],
    policy: Policy,
    uploaded: Mapping[str, tuple[str, int]],
) -> tuple[tuple[TaskForecast, ...], ConcurrencyForecast | None]:
    engines = {
        node.name: engine.type for node in workflow.tasks if (engine := spec_columns.known(node).engine) is not None
    }
    demands = {
        node.name: concurrency.demand_of(node.raw, needs[node.name], fleet)
        for node in workflow.tasks
        if node.name not in engines
    }
    first = {node.name: demands[node.name] for node in workflow.tasks if not _upstreams(node) and node.name in demands}
    chosen = concurrency.assign(first, fleet, policy)
    # Dependent tasks start later, when the first ones no longer hold their workers: match each against the full fleet.
    for name in demands.keys() - first.keys():
        chosen |= concurrency.assign({name: demands[name]}, fleet, policy)
    found = []
    for node in workflow.tasks:
        result = (
            _forecast_on_engine(node, engines[node.name])
            if node.name in engines
            else _forecast(node, demands[node.name], chosen.get(node.name, []), fleet, policy)
        )
        takes = memory.forecast(node.spec, result, fleet, partial(_configuration, core, uploaded.get(node.name)))
        found.append(result.model_copy(update={"memory": takes}))
    return tuple(found), concurrency.peak(workflow.tasks, demands, fleet)


def _configuration(
    core: ServerContext, uploaded: tuple[str, int] | None, name: str, revision: str | None
) -> model_configs.Found:
    if uploaded is not None:
        return model_configs.read_uploaded(core.blobs, *uploaded)
    return core.state(Configurations).of(name, revision, core.settings, core.clock.monotonic())


def _forecast(
    node: TaskNode, demand: Demand, placed: Sequence[str], fleet: Sequence[WorkerState], policy: Policy
) -> TaskForecast:
    need = demand.need
    workers = tuple(placed) if len(placed) >= demand.least else ()
    why = concurrency.shortage(demand, len(placed), fleet) or explain(need, fleet)
    if not workers and why is None:
        why = "waiting: earlier tasks of the workflow file use the eligible workers."
    return TaskForecast(
        name=node.name,
        kind=need.kind,
        worker_id=workers[0] if workers else None,
        worker_ids=workers,
        min_workers=demand.least,
        max_workers=demand.most,
        why=None if workers else why,
        after=_upstreams(node),
        workers=_match_results(need, fleet, policy),
    )


def _forecast_on_engine(node: TaskNode, engine: str) -> TaskForecast:
    """Return the forecast of a task with an engine, which no existing worker runs."""
    return TaskForecast(
        name=node.name,
        kind=spec_columns.known(node).task_type,
        why=f"gets nodes from {engine}, with its own worker on each",
        after=_upstreams(node),
    )


def _need(node: TaskNode) -> Requirement:
    return spec_columns.requirement_of(node.spec) if node.spec is not None else spec_columns.so_far(node.raw)[1]


def _upstreams(node: TaskNode) -> tuple[str, ...]:
    return (*node.depends_on, *node.external)


def _match_results(
    need: Requirement,
    fleet: Sequence[WorkerState],
    policy: Policy,
    *,
    avoid: frozenset[str] = frozenset(),
    task_id: str | None = None,
) -> tuple[WorkerVerdict, ...]:
    """Return the match result of each worker: those that fit first, in the order of the policy."""
    found = [(worker, verdict(need, worker, avoid=avoid, task_id=task_id)) for worker in fleet]
    fit = [worker for worker, result in found if isinstance(result, Fit)]
    ranking = Ranking(policy, need, fit)
    fit.sort(key=lambda worker: (ranking.key(worker), worker.id))
    views = [WorkerVerdict(worker_id=each.id, verdict="fits", score=round(ranking.score(each), 4)) for each in fit]
    rejects = [(result, worker.id) for worker, result in found if not isinstance(result, Fit)]
    for result, worker_id in sorted(rejects, key=lambda each: (each[0].permanent, each[1])):
        word = "never" if result.permanent else "waits"
        views.append(WorkerVerdict.model_validate({"worker_id": worker_id, "verdict": word, "reason": result.reason}))
    return tuple(views)


def _with_tasks(verdicts: Sequence[WorkerVerdict], running: Sequence[AttemptRow]) -> tuple[WorkerVerdict, ...]:
    """Add the running tasks to each worker that the task waits for."""
    running_ids: dict[str, list[str]] = {}
    for attempt in running:
        if attempt.merged_into is None:
            running_ids.setdefault(attempt.worker_id, []).append(attempt.task_id)
    return tuple(
        each.model_copy(update={"runs": tuple(running_ids.get(each.worker_id, ()))})
        if each.verdict == "waits"
        else each
        for each in verdicts
    )


def _ahead(connection: Connection, row: TaskRow, need: Requirement, fleet: Sequence[WorkerState], now: float) -> int:
    """Return how many tasks are ahead on the workers that could run it; without any, those with its requirement."""
    able = [worker for worker in fleet if lacks(need, worker) is None]
    others = cluster_state.needs(connection, queue.groups(connection))
    rivals = [
        key
        for key, other in others.items()
        if key == row.requirement_key
        or (other.slot_class == need.slot_class and any(lacks(other, worker) is None for worker in able))
    ]
    return queue.ahead(connection, row, rivals, now)


def _status_sentence(row: TaskRow) -> str | None:
    """Return one sentence on a task that is not pending."""
    where = f" on {row.worker_id}" if row.worker_id else ""
    match row.status:
        case TaskStatus.DISPATCHED:
            return f"Offered to {row.worker_id}, which has not accepted yet."
        case TaskStatus.RUNNING:
            return f"Running{where}{_since(row.started_at)}."
        case TaskStatus.PAUSED:
            return f"Paused. Continue with `tunefleet resume {row.id}`."
        case TaskStatus.COMPLETED:
            how = "Stopped early and completed" if row.reason == TaskReason.STOPPED_EARLY else "Completed"
            return f"{how}{where}."
        case TaskStatus.CANCELLED if row.reason == TaskReason.CANCELLED_BY_USER and not row.error:
            return "Cancelled on request."
    ended = _ENDED.get(row.status)
    why = f": {row.error}" if row.error else "."
    return None if ended is None else f"It {ended} ({_word(row.reason)}){why}"


def _since(at: float | None) -> str:
    return "" if at is None else f" since {to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"


def _word(reason: str | None) -> str:
    return (reason or "unknown").replace("_", " ")


def _attempt_sentences(connection: Connection, row: TaskRow) -> tuple[str, ...]:
    found = attempts.of_task(connection, row)
    gangs = attempts.of_gangs(connection, [each.id for each in found if each.gang_of is not None])
    return tuple(_sentence(row, each, gangs.get(each.id, [each])) for each in found)


def _sentence(row: TaskRow, attempt: AttemptRow, nodes: Sequence[AttemptRow]) -> str:
    what = f"Attempt {attempt.number} on {', '.join(node.worker_id for node in nodes)}"
    missing = [node.worker_id for node in nodes if node.state == "offered"]
    if missing and attempt.open:
        return f"{what} is offered; {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} not accepted yet."
    if attempt.state == "accepted":
        wanted = {"pause": " and pausing", "cancel": " and cancelling"}.get(row.desired, "")
        return f"{what} is running{wanted}."
    # The sentence on the status of an ended task has its error.
    repeated = row.status in _ENDED and attempt.error == row.error
    error = f": {attempt.error}" if attempt.error and not repeated else "."
    return f"{what} ended ({_word(attempt.reason or attempt.state)}){error}"
