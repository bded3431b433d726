"""`provider: local`: an order is a LoRA training task on our own workers."""

from __future__ import annotations

from typing import Any, Final

import orjson

from tunefleet.campaign import data_documents, progress
from tunefleet.campaign.contract import Candidate, Order, Progress
from tunefleet.campaign.task_client import document, inputs_of, model_of
from tunefleet.client import AsyncClient
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import SubmitRequest, TaskDetail
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import LOCAL

# Our own server may be polled often.
LOOK_S: Final = 1.0
_HOUR_S: Final = 3600.0
# Number of newest workflows of the order's name that are searched.
_NEWEST: Final = 10
# Same clock as the server, but `created_at` is rounded.
_SKEW_S: Final = 1.0


class LocalProvider:
    """Trains with tasks of our server; a ticket is a task id."""

    name = LOCAL
    paid = False
    fetches_from_store = False

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def submit(self, order: Order) -> str:
        """Submit the training task; the same order is the same task."""
        request = SubmitRequest(
            document=orjson.dumps(training(order)).decode(), inputs=inputs_of(order.name, order.base)
        )
        workflow = await self._client.workflows.create(request, f"{order.key}/order")
        return workflow.tasks[0].id

    async def find(self, order: Order) -> str | None:
        """Return the task that an earlier attempt has submitted, so that stopping the campaign can cancel it."""
        # None is safe here: submitting again under the same key returns the same task.
        if order.since is None:
            return None
        wanted = orjson.dumps(training(order)).decode()
        for each in (await self._client.workflows.list(name=order.name, limit=_NEWEST)).items:
            if each.created_at.timestamp() < order.since - _SKEW_S:
                continue
            if (await self._client.workflows.get(each.id)).document == wanted:
                return each.tasks[0].id
        return None

    async def look(self, ticket: str) -> Progress:
        """Return the status of the training task."""
        task = await self._client.tasks.get(ticket)
        match TaskStatus(task.status):
            case TaskStatus.COMPLETED:
                candidate = Candidate(ref=task.id, form="adapter", name=task.name, on_fleet=True)
                return Progress("succeeded", f"{task.id} is trained", (candidate,), cost_s=_took_s(task))
            case TaskStatus.FAILED | TaskStatus.CANCELLED | TaskStatus.SKIPPED:
                why = task.error or task.reason or "no reason was given"
                return Progress("failed", f"{task.id} has {task.status}: {why}", cost_s=_took_s(task))
            case _:
                detail = progress.waits_in([task]) or f"{task.id} is {task.status}"
                return Progress("running", detail, again_s=LOOK_S, activity=progress.of_task(task))

    async def cancel(self, ticket: str) -> None:
        """Cancel the training task."""
        try:
            await self._client.tasks.cancel(ticket)
        except ConflictError:
            return  # it has already ended

    async def close(self) -> None:
        """Nothing to close: the client belongs to the engine."""


def make(settings: CampaignSettings, client: AsyncClient) -> LocalProvider:
    """Return the provider; see `contract.MakeProvider`."""
    del settings  # no account is needed
    return LocalProvider(client)


def training(order: Order) -> dict[str, Any]:
    """Return the workflow file of an order."""
    spec = order.spec
    options: dict[str, Any] = {
        key: block.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for key in ("training", "lora", "quantization", "resources")
        if (block := getattr(spec, key)) is not None and key in spec.model_fields_set
    }
    blocks = model_of(spec, order.base)
    loading: dict[str, Any] = spec.model.transformers.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if loading:
        blocks["model"]["transformers"] = loading
    body: dict[str, Any] = {
        "taskType": "lora_sft",
        **blocks,
        "data": {"artifact": order.data.artifact_id, **data_documents.columns(spec)},
        "limits": {"max_runtime_s": order.hours * _HOUR_S},
        **options,
    }
    return document(order.name, body)


def _took_s(task: TaskDetail) -> float | None:
    if task.started_at is None or task.finished_at is None:
        return None
    return (task.finished_at - task.started_at).total_seconds()
