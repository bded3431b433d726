"""Resume points of tasks: in offers, and as requested by a user. Functions on a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import artifacts, commands, events, journal, tasks, training_protocol
from tunefleet.db.repositories.attempts import OfferRow, delete_resumes, last_workers, put_resume, resumes_of
from tunefleet.db.rows import ArtifactRow, AttemptRow, ResumeRow, TaskRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import EXTERNAL
from tunefleet.orchestrator.fleet import agents, cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.storage import checkpoint_retention
from tunefleet.orchestrator.tasks import checkpoints
from tunefleet.orchestrator.tasks.checkpoints import CheckpointInfo
from tunefleet.orchestrator.tasks.transitions import Move, switch
from tunefleet.schemas.worker_link import InputRef, ResumeFrom

FromStep = int | Literal["best"] | None


def for_offers(connection: Connection, rows: Sequence[OfferRow]) -> dict[str, ResumeFrom]:
    """Return the resume points of offered tasks, by task id; tasks that start from the beginning are left out."""
    jobs = [row for row in rows if row.slot_class == "job"]
    if not jobs:
        return {}
    ids = [row.task_id for row in jobs]
    requested, uploads = resumes_of(connection, ids), checkpoint_retention.uploaded(connection, ids)
    found = {row.task_id: _for(row, requested.get(row.task_id), uploads.get(row.task_id, [])) for row in jobs}
    return {task_id: resume for task_id, resume in found.items() if resume is not None}


def _for(offer: OfferRow, requested: ResumeRow | None, uploads: Sequence[ArtifactRow]) -> ResumeFrom | None:
    newest, best = checkpoint_retention.newest_and_best(uploads)
    if offer.gang_of is not None:
        return _for_node(requested, uploads, newest)
    # For a task resumed from another one, the requested step applies to the first attempt only.
    exact = (
        requested is not None and requested.step is not None and (requested.from_task_id is None or offer.number == 1)
    )
    if requested is not None and exact:
        chosen = next((upload for upload in uploads if upload.name == f"checkpoint-{requested.step}"), None)
        return ResumeFrom(step=requested.step, exact=True, checkpoint=_ref(chosen), from_task=requested.from_task_id)
    if newest is not None:
        source = requested.from_task_id if requested is not None else None
        return ResumeFrom(
            step=checkpoint_retention.step_of(newest), checkpoint=_ref(newest), best=_ref(best), from_task=source
        )
    return None if requested is None else ResumeFrom(step=requested.step, from_task=requested.from_task_id)


def _for_node(
    requested: ResumeRow | None, uploads: Sequence[ArtifactRow], newest: ArtifactRow | None
) -> ResumeFrom | None:
    """Return the resume point of a gang's node: all use the same upload, even if one has a newer local checkpoint."""
    named = None if requested is None or requested.step is None else f"checkpoint-{requested.step}"
    chosen = next((upload for upload in uploads if upload.name == named), newest)
    if chosen is None:
        return None
    return ResumeFrom(step=checkpoint_retention.step_of(chosen), exact=True, checkpoint=_ref(chosen))


def taken(connection: Connection, attempts: Sequence[AttemptRow]) -> None:
    """Drop the requested resume points of accepted attempts; later attempts use the newest checkpoint."""
    found = resumes_of(connection, [row.task_id for row in attempts])
    done = [task_id for task_id, row in found.items() if row.from_task_id is None]
    for task_id in done:
        step = found[task_id].step
        if step is not None:
            checkpoint_retention.drop_beyond(connection, task_id, step)
    if done:
        delete_resumes(connection, done)


def requeue(connection: Connection, row: TaskRow, from_step: FromStep, now: float) -> None:
    """Return a paused task to its place in the queue.

    Raises:
        ConflictError: If it was registered, not submitted, or has no such checkpoint.
    """
    if row.worker_id is not None and row.worker_id.startswith(EXTERNAL):
        raise ConflictError(f"Run {row.id} was registered, not submitted.", hint="Resume it on its own machine.")
    known = checkpoints.known(connection, row)
    if known or from_step is not None:
        chosen = choose(connection, row, known, from_step)
        local = chosen.artifact is None
        if local or from_step is not None:
            step = None if from_step is None else chosen.step
            # A checkpoint without an upload binds the task to the worker that has it on its disk.
            put_resume(connection, ResumeRow(row.id, step, None, chosen.worker_id if local else None, int(local)))
    switch(connection, [Move(row, TaskReason.RESUMED, changes={"ready_at": 0.0, "error": None})], now)


def requeue_resumed(connection: Connection, row: TaskRow, now: float) -> None:
    """Queue a paused task whose pause was cancelled; it stays paused if no worker can resume it."""
    try:
        requeue(connection, row, None, now)
    except ConflictError as error:
        # A later `resume` raises the same error to the user.
        tasks.desire(connection, row.id, "pause")
        events.append(connection, [events.of_task(row, "task.message", now, {"message": error.message})])


def choose(
    connection: Connection, row: TaskRow, checkpoints: Sequence[CheckpointInfo], from_step: FromStep
) -> CheckpointInfo:
    """Return the checkpoint to resume from.

    Raises:
        ConflictError: If there is none, or no worker has it any more.
    """
    if cluster_state.needs(connection, [row.requirement_key])[row.requirement_key].nodes_max > 1:
        # The nodes do not share a disk: all resume from an upload.
        checkpoints = [each for each in checkpoints if each.artifact is not None]
    steps = ", ".join(str(each.step) for each in checkpoints) or "none"
    hint = f"Checkpoints: {steps}. `tunefleet retry {row.id}` starts from the beginning."
    if from_step is None:
        wanted = [each for each in checkpoints if each.resumable] or list(checkpoints)
    elif from_step == "best":
        wanted = [each for each in checkpoints if each.best]
    else:
        wanted = [each for each in checkpoints if each.step == from_step]
    if not wanted:
        what = "checkpoint" if from_step is None else f"checkpoint {from_step}"
        raise ConflictError(f"Run {row.id} has no {what} to resume from.", hint=hint)
    chosen = wanted[-1]
    if chosen.artifact is None and not (chosen.local and _registered(connection, chosen.worker_id)):
        raise ConflictError(
            f"Checkpoint {chosen.step} of {row.id} no longer exists: it was not uploaded, and the worker that "
            "wrote it has deleted it or is gone.",
            hint=hint,
        )
    return chosen


def refuse_done(connection: Connection, row: TaskRow, chosen: CheckpointInfo) -> None:
    """Refuse to resume a completed run from its last step: the new task would have nothing to do."""
    launches = journal.launches_of(connection, row.id)
    progress = orjson.loads(launches[-1].progress) if launches and launches[-1].progress else {}
    end = int(progress.get("max_steps") or 0)
    if row.status != TaskStatus.COMPLETED or not end or chosen.step < end or _end_was_set(connection, row):
        return
    longer = "" if row.kind == "command" else f" --set training.max_steps={2 * end}"
    raise ConflictError(
        f"Run {row.id} has completed all of its {end} steps: there is nothing to resume.",
        hint=f"`tunefleet clone {row.id}{longer}` starts a {'longer' if longer else 'new'} run; "
        f"`tunefleet resume {row.id} --from STEP` resumes from an earlier checkpoint.",
    )


def _end_was_set(connection: Connection, row: TaskRow) -> bool:
    """Whether `max_steps` was changed during the run; the new task has the value of the workflow file again."""
    changes = (orjson.loads(each.data) for each in commands.of_task(connection, row.id) if each.command == "set")
    return any("max_steps" in change for change in changes)


def copy_to_child(connection: Connection, parent: TaskRow, child: TaskRow, chosen: CheckpointInfo, now: float) -> None:
    """Let a new task start from a checkpoint of its parent; an upload is copied to it."""
    upload = chosen.artifact
    if upload is not None:
        about = {**orjson.loads(upload.metadata), "best": False}
        copy = upload._asdict() | {
            "id": new_id("art"), "task_id": child.id, "attempt_id": None, "owner": child.owner, "created_at": now,
            "metadata": orjson.dumps(about).decode(),
        }  # fmt: skip
        del copy["seq"]
        artifacts.insert_one(connection, copy, artifacts.files(connection, upload.id))
    worker_id = chosen.worker_id
    if worker_id is None:
        worker_id = last_workers(connection, [parent.seq]).get(parent.id)
    put_resume(connection, ResumeRow(child.id, chosen.step, parent.id, worker_id, int(upload is None)))


def refuse_running(row: TaskRow) -> None:
    """Refuse to resume a task that is neither paused nor final."""
    status = TaskStatus(row.status)
    if status is TaskStatus.PAUSED or status.final:
        return
    if row.desired == "pause":
        hint = f"Wait until it is paused; `tunefleet resume {row.id}` without a step cancels the pause."
        raise ConflictError(f"Run {row.id} is still being paused.", hint=hint)
    raise ConflictError(f"Run {row.id} is {row.status}: there is nothing to resume.")


def _registered(connection: Connection, worker_id: str | None) -> bool:
    return worker_id is not None and worker_rows.get(connection, worker_id) is not None


def _ref(upload: ArtifactRow | None) -> InputRef | None:
    return None if upload is None else InputRef(digest=upload.digest, name=upload.name)


def ask_to_resume(connection: Connection, row: TaskRow, fleet: FleetSnapshot) -> bool:
    """Request the agent of a paused job to resume it; False if it is not an agent's job."""
    if row.worker_id is not None and row.worker_id.startswith(EXTERNAL):
        agents.refuse_unreachable(connection, row)
    agent = worker_rows.get(connection, row.worker_id) if row.worker_id is not None else None
    if agent is None or agent.session != AGENT_SESSION or agent.id not in fleet.limits:
        return False
    if row.desired != "run" or row.generation <= row.reached:
        tasks.desire(connection, row.id, "run")
        events.append(connection, [events.of_task(row, "task.resuming", fleet.now, {})])
    wake(connection, f"worker:{agent.id}", f"task:{row.id}")
    return True


def give_up(connection: Connection, worker_id: str, now: float) -> None:
    """Requeue paused jobs that a lost agent was asked to resume."""
    for row in training_protocol.paused_at(connection, worker_id):
        if row.desired == "run" and row.generation > row.reached:
            requeue_resumed(connection, row, now)
