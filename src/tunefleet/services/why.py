"""Why a task stands where it stands, worker by worker; and where the tasks of a document would go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tunefleet.errors import SpecError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.placement import Board, Candidate, Fit, Policy, Ranking, Requirement, WorkerState, explain, verdict
from tunefleet.services import placing, policies, related, requirements, roster, tasks
from tunefleet.services.core import Core
from tunefleet.services.identity import Actor, may_read
from tunefleet.services.workflows import validate
from tunefleet.spec import TaskNode, Workflow, parse_workflow
from tunefleet.store import Connection, attempts, queue
from tunefleet.store.rows import AttemptRow, TaskRow
from tunefleet.wire.api import SubmitRequest, ValidateReply
from tunefleet.wire.fleet import TaskForecast, WhyView, WorkerVerdict


async def of_task(core: Core, actor: Actor, task_id: str) -> WhyView:
    """Say why a task stands where it stands, and what each worker makes of it.

    Raises:
        NotFoundError: If there is no such task.
    """
    may_read(actor)
    here, policy = roster.presences(core), placing.policy_of(core.settings)

    def operation(connection: Connection) -> WhyView:
        row = tasks.find(connection, actor, task_id)
        fleet = roster.states(connection, here)
        waits = row.status in {TaskStatus.QUEUED, TaskStatus.PENDING}
        need = roster.needs(connection, [row.requirement_key])[row.requirement_key] if waits else None
        avoid = roster.avoided(connection, [row.id], here.now).get(row.id, frozenset())
        return WhyView(
            task_id=row.id,
            status=row.status,
            why=roster.reasons(connection, here, [row], fleet).get(row.id),
            ahead=queue.ahead(connection, row, here.now) if row.status == TaskStatus.QUEUED else 0,
            waits_for=related.waits_for(connection, row),
            workers=() if need is None else _verdicts(need, fleet, policy, avoid=avoid, task_id=row.id),
            attempts=tuple(_sentence(row, each) for each in attempts.of_task(connection, row)),
        )

    return await core.read(operation)


async def of_document(core: Core, actor: Actor, request: SubmitRequest) -> ValidateReply:
    """Validate a document, and say where each of its tasks would go now if nothing else were waiting.

    Tasks that depend on others are looked at as if the fleet were then as it is now.
    """
    may_read(actor)
    try:
        workflow = await asyncio.to_thread(parse_workflow, request.document, filename=request.filename)
    except SpecError:
        return await asyncio.to_thread(validate, request.document, request.filename)
    here, policy = roster.presences(core), placing.policy_of(core.settings)
    fleet = await core.read(lambda connection: roster.states(connection, here))
    found = await asyncio.to_thread(_forecasts, workflow, fleet, policy)
    return ValidateReply(ok=True, tasks=tuple(node.name for node in workflow.tasks), forecasts=found)


def _forecasts(workflow: Workflow, fleet: Sequence[WorkerState], policy: Policy) -> tuple[TaskForecast, ...]:
    needs = {node.name: _need(node) for node in workflow.tasks}
    first = [node.name for node in workflow.tasks if not _upstreams(node)]
    candidates = [Candidate(name, needs[name], float(place)) for place, name in enumerate(first)]
    chosen = {each.task_id: each.worker_id for each in Board(fleet, policy).assign(candidates).assignments}
    for name in needs.keys() - set(first):
        alone = Board(fleet, policy).assign([Candidate(name, needs[name], 0.0)]).assignments
        chosen |= {each.task_id: each.worker_id for each in alone}
    return tuple(_forecast(node, needs[node.name], chosen, fleet, policy) for node in workflow.tasks)


def _forecast(
    node: TaskNode, need: Requirement, chosen: Mapping[str, str], fleet: Sequence[WorkerState], policy: Policy
) -> TaskForecast:
    worker_id, why = chosen.get(node.name), explain(need, fleet)
    if worker_id is None and why is None:
        why = "waiting: tasks before it in the document take the workers that fit."
    return TaskForecast(
        name=node.name,
        kind=need.kind,
        worker_id=worker_id,
        why=None if worker_id else why,
        after=_upstreams(node),
        workers=_verdicts(need, fleet, policy),
    )


def _need(node: TaskNode) -> Requirement:
    return requirements.of(node.spec) if node.spec is not None else policies.so_far(node.raw)[1]


def _upstreams(node: TaskNode) -> tuple[str, ...]:
    return (*node.depends_on, *node.external)


def _verdicts(
    need: Requirement,
    fleet: Sequence[WorkerState],
    policy: Policy,
    *,
    avoid: frozenset[str] = frozenset(),
    task_id: str | None = None,
) -> tuple[WorkerVerdict, ...]:
    """Return what each worker makes of a need: those that fit first, in the order in which they would be taken."""
    found = [(worker, verdict(need, worker, avoid=avoid, task_id=task_id)) for worker in fleet]
    fit = [worker for worker, told in found if isinstance(told, Fit)]
    ranking = Ranking(policy, need, fit)
    fit.sort(key=lambda worker: (ranking.key(worker), worker.id))
    views = [WorkerVerdict(worker_id=each.id, verdict="fits", score=round(ranking.score(each), 4)) for each in fit]
    rejects = [(told, worker.id) for worker, told in found if not isinstance(told, Fit)]
    for told, worker_id in sorted(rejects, key=lambda each: (each[0].lasting, each[1])):
        word = "never" if told.lasting else "waits"
        views.append(WorkerVerdict.model_validate({"worker_id": worker_id, "verdict": word, "reason": told.reason}))
    return tuple(views)


def _sentence(row: TaskRow, attempt: AttemptRow) -> str:
    what = f"Attempt {attempt.number} on {attempt.worker_id}"
    if attempt.state == "offered":
        return f"{what} is offered and not yet accepted."
    if attempt.state == "accepted":
        wanted = {"pause": " and shall pause", "cancel": " and shall end"}.get(row.desired, "")
        return f"{what} runs{wanted}."
    ended = (attempt.reason or attempt.state).replace("_", " ")
    return f"{what} ended ({ended}){f': {attempt.error}' if attempt.error else '.'}"
