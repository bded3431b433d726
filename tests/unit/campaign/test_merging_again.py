"""A merge on the fleet that fails: tried again, retried by a person, made once more; and nothing is ordered again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Self

import pytest

from tests.unit.campaign.played import Counted, Points, Shop, engine
from tests.unit.campaign.service.desk import made
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign import task_client
from tunefleet.campaign.contract import Outcome, StepContext
from tunefleet.campaign.service import retries, service
from tunefleet.campaign.steps.merge import MergeStep
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.campaign import CampaignDetail, CampaignRetry


class Selected(Counted):
    """Chooses an adapter that a task of our server has left."""

    async def act(self, context: StepContext, intent: Outcome) -> Outcome:
        return {"candidate": {"ref": "task-adapter", "form": "adapter", "name": "one", "on_fleet": True}}


class Server:
    """The client of a server that gives one answer to a key, however often it is asked."""

    def __init__(self, *ends: str | None) -> None:
        self.ends = list(ends)
        self.runs: dict[str, Any] = {}
        self.workflows = SimpleNamespace(create=self._create, get=self._get)
        self.tasks = SimpleNamespace(get=self._get)
        self.artifacts = SimpleNamespace(iterate=self._left)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def _create(self, request: Any, key: str) -> Any:
        if key not in self.runs:
            reason = self.ends.pop(0)
            id_, status = f"merge-{len(self.runs)}", "completed" if reason is None else "failed"
            run = SimpleNamespace(id=id_, name="merge", status=status, reason=reason, error=f"it says {reason}")
            run.tasks = [run]  # of one task, which a look at either shows
            self.runs[key] = run
        return self.runs[key]

    async def _get(self, id_: str) -> Any:
        return next(each for each in self.runs.values() if each.id == id_)

    async def _left(self, task_id: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(id=f"artifact-of-{task_id}", name="final_model", kind="model", digest="sha256:1")


async def go_on(lab: Lab, id_: str, shop: Shop, server: Server) -> CampaignDetail:
    acting = engine(lab, shop, Points(), real=(Selected(StepName.SELECT, []), MergeStep()))
    acting._make_client = lambda token: server  # type: ignore[assignment, return-value]
    await acting.advance(id_)
    return await service.get(lab.core, lab.admin, id_)


def merge_of(found: CampaignDetail) -> Any:
    (step,) = [each for each in found.cycle_list[-1].steps if each.name == "merge"]
    return step


async def test_a_merge_that_fails_is_tried_again_and_no_training_is_ordered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_client, "FIRST_POLL_S", 0.0)
    id_, shop, server = await made(lab), Shop(), Server("worker_lost", "bad_input", None, None)
    found = await go_on(lab, id_, shop, server)
    assert "merge: task merge-0 has failed: it says worker_lost" in (merge_of(found).error or "")
    assert found.cycle is not None
    assert found.cycle.status == "running"
    assert found.cycle.retry_at is not None

    lab.clock.advance(found.cycle.retry_at.timestamp() - lab.clock.wall + 1)
    found = await go_on(lab, id_, shop, server)
    assert "it says bad_input" in (merge_of(found).error or ""), "under a key of its own: the first has failed for good"
    await retries.retry(lab.core, lab.admin, id_, CampaignRetry())
    found = await go_on(lab, id_, shop, server)
    assert merge_of(found).outcome == {
        "task_id": "merge-2", "artifact_id": "artifact-of-merge-2", "digest": "sha256:1", "form": "model",
    }  # fmt: skip
    assert found.cycle_list[-1].status == "completed"

    await retries.remerge(lab.core, lab.admin, id_, 0)
    found = await go_on(lab, id_, shop, server)
    assert merge_of(found).outcome["task_id"] == "merge-3"
    assert found.cycle_list[-1].status == "completed"
    assert shop.orders.count(f"{id_}/0") == 1, "the training is paid for once"
    assert not server.ends
