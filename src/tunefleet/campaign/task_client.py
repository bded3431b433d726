"""Runs tasks on our own server for a step: submitted with the cycle's idempotency keys, polled until they end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from tunefleet.campaign import progress
from tunefleet.campaign.contract import Base, CycleFailed, StepContext, StepFailed
from tunefleet.campaign.service.status import same_reason
from tunefleet.errors import NotFoundError, UnreachableError
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.schemas.api import ArtifactView, SubmitRequest, TaskDetail, WorkflowView
from tunefleet.spec.documents.campaign_document import CampaignSpec

FIRST_POLL_S: Final = 0.1
LAST_POLL_S: Final = 2.0
# A retry of such a task would fail the same way.
_PERMANENT: Final = frozenset({TaskReason.BAD_INPUT.value, TaskReason.DIVERGED.value})
# Not caused by the task itself.
_TRANSIENT: Final = frozenset({
    TaskReason.NETWORK.value, TaskReason.DISK_FULL.value, TaskReason.KILLED.value, TaskReason.DELIVERY_FAILED.value,
    TaskReason.WORKER_LOST.value, TaskReason.ABORTED.value, TaskReason.CANCELLED_BY_USER.value,
})  # fmt: skip
# Possibly caused by other load on the machine.
_BUSY: Final = frozenset({
    TaskReason.OUT_OF_MEMORY.value, TaskReason.TIMEOUT.value, TaskReason.STALLED.value, TaskReason.CRASHED.value
})  # fmt: skip
_UNSUCCESSFUL: Final = frozenset({"failed", "cancelled", "skipped"})


class TaskFailed(StepFailed):
    """A task has failed."""

    def __init__(self, message: str, *, hint: str, transient: bool, busy: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient
        self.busy = busy


def document(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workflow file of one task."""
    return {"apiVersion": "tunefleet/v1", "metadata": {"name": name}, "spec": dict(body)}


def graph(name: str, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the workflow file of several tasks by name; references between them define the dependencies."""
    return document(name, {"graph": {"nodes": [{"name": each, "spec": dict(body)} for each, body in nodes.items()]}})


def digest_of(*what: Any) -> str:
    """Return a digest of JSON values that does not depend on the order of keys."""
    return hashlib.sha256(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()


def model_of(spec: CampaignSpec, base: Base) -> dict[str, Any]:
    """Return the spec blocks of a task's model; see `inputs_of` for an artifact that replaces it."""
    source: dict[str, Any] = {"identifier": base.repo}
    revision = spec.model.revision if base.repo == spec.model_repo else base.revision
    if revision is not None:
        source["revision"] = revision
    if runs_code(spec, base):
        source["trust_remote_code"] = True
    blocks: dict[str, Any] = {"model": {"source": source}}
    if base.task_id is not None and base.digest is None:
        blocks["checkpoint"] = {"load": {"taskId": base.task_id}}
    return blocks


def runs_code(spec: CampaignSpec, base: Base) -> bool:
    """Return whether a model's code is run: only for the campaign's own model and models trained from it here."""
    return spec.model.trust_remote_code and not base.foreign


def inputs_of(name: str, base: Base) -> dict[str, dict[str, str]]:
    """Return the artifact that replaces a task's model, as workflow inputs."""
    return {} if base.digest is None else {name: {"model.source.identifier": base.digest}}


class CampaignTaskClient:
    """Runs tasks for a step."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._client = context.client

    async def run(
        self, what: str, body: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]] | None = None
    ) -> list[TaskDetail]:
        """Run a workflow file of this cycle, and return its tasks once all have completed.

        After a crash, submitting again returns the same workflow; a failed one is run again by the step's next retry.

        Args:
            inputs: Task → pointer → digest of the uploaded file.

        Raises:
            StepFailed: If a task failed or was cancelled.
            CycleFailed: If a retry would fail the same way.
        """
        state = self._context.state
        workflow = None
        for number in range(state.tries + 1):
            key = state.key(state.step, f"{what}/{number}")
            workflow = await self._submit(body, inputs, key)
            if workflow.status not in _UNSUCCESSFUL:
                break
        assert workflow is not None
        return await self._ended(workflow, what)

    async def shared(
        self,
        what: str,
        body: Mapping[str, Any],
        inputs: Mapping[str, Mapping[str, str]] | None = None,
        *,
        leaves: Mapping[str, tuple[str, ...]],
    ) -> list[TaskDetail]:
        """Run a workflow file that any cycle may share: the tasks of a completed run are reused.

        Args:
            leaves: Task → names of the artifacts that are needed; if one was removed, the workflow runs again.
        """
        page = await self._client.workflows.list(name=body["metadata"]["name"], status="completed", limit=1)
        if page.items:
            tasks = [await self._client.tasks.get(task.id) for task in page.items[0].tasks]
            if all([await self._has(task.id, leaves.get(task.name, ())) for task in tasks]):
                return tasks
        return await self.run(what, body, inputs)

    async def _has(self, task_id: str, names: tuple[str, ...]) -> bool:
        left = {artifact.name async for artifact in self._client.artifacts.iterate(task_id=task_id)} if names else set()
        return set(names) <= left

    async def left(self, task_id: str, name: str) -> ArtifactView:
        """Return the newest artifact of a task with a name or kind.

        Raises:
            StepFailed: If there is none: it may have been removed.
        """
        async for artifact in self._client.artifacts.iterate(task_id=task_id):
            if name in {artifact.name, artifact.kind}:
                return artifact
        raise StepFailed(f"Task {task_id} has no artifact {name}.", hint="It may be removed; retry the cycle.")

    async def find(self, name: str) -> WorkflowView | None:
        """Return the newest workflow of a name."""
        page = await self._client.workflows.list(name=name, limit=1)
        return page.items[0] if page.items else None

    async def _submit(
        self, body: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]] | None, key: str
    ) -> WorkflowView:
        given = {task: dict(pointers) for task, pointers in (inputs or {}).items()}
        request = SubmitRequest(document=orjson.dumps(body).decode(), inputs=given)
        return await self._client.workflows.create(request, key)

    async def _ended(self, workflow: WorkflowView, what: str) -> list[TaskDetail]:
        await self._context.log(f"{what}: {', '.join(task.id for task in workflow.tasks)}")
        ended = await self._poll(workflow, lambda found: found.status != "running")
        tasks = [await self._client.tasks.get(task.id) for task in ended.tasks]
        bad = next((task for task in tasks if task.status != TaskStatus.COMPLETED and _is_root_cause(task)), None)
        bad = bad or next((task for task in tasks if task.status != TaskStatus.COMPLETED), None)
        if bad is not None:
            raise failure_of(bad, what)
        return tasks

    async def _poll(self, workflow: WorkflowView, over: Callable[[WorkflowView], bool]) -> WorkflowView:
        pause_s, found, logged = FIRST_POLL_S, workflow, None
        while not over(found):
            await asyncio.sleep(pause_s)
            # Most tasks are scheduled within the first polls: only longer waits are logged.
            long, pause_s = pause_s >= LAST_POLL_S, min(pause_s * 1.5, LAST_POLL_S)
            try:
                found = await self._client.workflows.get(workflow.id)
                waits = progress.waits_in(found.tasks)
            except UnreachableError as error:
                # Our own server is busy, or is shutting down, which cancels this task.
                waits = f"for the server, which does not respond: {error.message}"
            except NotFoundError:
                raise StepFailed(f"Workflow {workflow.id} ({workflow.name}) was removed.") from None
            else:
                activity = progress.of_tasks(found.tasks)
                if activity is not None:
                    await self._context.repository.report(self._context.state, activity)
            if long and waits is not None and not same_reason(waits, logged):
                await self._context.log(f"waiting {waits}; checked every {LAST_POLL_S:g} s until it changes")
            logged = waits if long else logged
        return found


def _is_root_cause(task: TaskDetail) -> bool:
    return task.reason not in {
        TaskReason.UPSTREAM_FAILED,
        TaskReason.UPSTREAM_CANCELLED,
        TaskReason.SIBLING_FAILED,
        TaskReason.UPSTREAM_SKIPPED,
    }


def failure_of(task: TaskDetail, what: str) -> TaskFailed | CycleFailed:
    """Return the error for a task that did not complete."""
    why = task.error or task.reason or "no reason was given"
    message = f"{what}: task {task.id} has {task.status}: {why}"
    hint = f"See `tunefleet show {task.id}`."
    if task.reason in _PERMANENT:
        return CycleFailed(message, hint=hint)
    return TaskFailed(message, hint=hint, transient=task.reason in _TRANSIENT, busy=task.reason in _BUSY)


def result_of(task: TaskDetail) -> Mapping[str, Any]:
    """Return the content of a completed task's `responses.json`."""
    result = task.result or {}
    inner = result.get("result")
    return inner if isinstance(inner, dict) else result
