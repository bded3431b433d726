"""Workflows of echo tasks, and a worker that runs whatever it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest, TaskDetail, WorkflowDetail
from tunefleet.schemas.worker_link import Offer

Node = dict[str, Any]


def stage(
    name: str,
    *upstream: str,
    spec: Mapping[str, Any] | None = None,
    external: Sequence[str] = (),
    when: Mapping[str, Any] | None = None,
) -> Node:
    """An echo task of a workflow.

    Args:
        name: Its name.
        upstream: Names of the tasks before it.
        spec: What it does, without the kind.
        external: Ids of tasks submitted before.
        when: Its condition.
    """
    whole = {"taskType": "echo", "data": {"type": "list", "items": [name]}, **(spec or {})}
    if when is not None:
        whole["condition"] = when
    return {"name": name, "dependsOn": [*upstream, *external], "spec": whole}


@dataclass
class Pipelines:
    """Submits workflows to a lab, and runs what is offered there.

    Args:
        lab: The server.
        worker: Its one worker.
        ran: Names of the tasks that were started, in order.
        specs: Task name → the spec that the worker was given.
    """

    lab: Lab
    worker: FakeWorker
    ran: list[str] = field(default_factory=list)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def submit(self, *nodes: Node, version: str = "tunefleet/v1") -> WorkflowDetail:
        spec = {"graph": {"nodes": nodes}}
        document = {"apiVersion": version, "metadata": {"name": "pipeline"}, "spec": spec}
        return await workflows.submit(self.lab.core, self.lab.admin, SubmitRequest(document=json.dumps(document)))

    async def see(self, flow: WorkflowDetail) -> WorkflowDetail:
        return await workflows.get(self.lab.core, self.lab.admin, flow.id)

    async def states(self, flow: WorkflowDetail) -> dict[str, str]:
        """Name → status of a workflow's tasks."""
        return {task.name: task.status for task in (await self.see(flow)).tasks}

    async def task(self, flow: WorkflowDetail, name: str) -> TaskDetail:
        found = next(task for task in (await self.see(flow)).tasks if task.name == name)
        return await self.lab.task(found.id)

    async def found(self, flow: WorkflowDetail, name: str) -> dict[str, Any]:
        """What a task found."""
        task = await self.task(flow, name)
        assert task.result is not None, task.error
        found: dict[str, Any] = task.result["result"]
        return found

    async def take(self) -> list[Offer]:
        """Start all that is offered now."""
        offers = list(await self.worker.offers())
        if offers:
            await self.worker.accept(*(offer.token for offer in offers))
        self.ran += [offer.name for offer in offers]
        self.specs |= {offer.name: offer.spec for offer in offers}
        return offers

    async def run(self, results: Mapping[str, Any] | None = None) -> None:
        """Run everything until nothing more is offered; a result that is a text is the reason of a failure."""
        while offers := await self.take():
            for offer in offers:
                await self.end(offer, (results or {}).get(offer.name, {"items": offer.spec["data"].get("items")}))

    async def end(self, offer: Offer, result: Any) -> None:
        if isinstance(result, str):
            await self.worker.finish(offer.token, "failed", result, error=f"{offer.name} broke.")
        else:
            await self.worker.finish(offer.token, result=result)
