"""How far a step is, as it counts, or as the tasks that it runs have said."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.campaign.played import Counted, Points, Shop, engine
from tests.unit.campaign.service.desk import made
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign import progress
from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.campaign.providers.local import LocalProvider
from tunefleet.campaign.service import service
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.errors import StoreError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.api import ProgressView, TaskView
from tunefleet.schemas.campaign import ActivityView


class Sending(Counted):
    """Sends ten bytes, in a thread, and tells what the campaign shows meanwhile."""

    def __init__(self, lab: Lab, failing: bool = False) -> None:
        super().__init__(StepName.UPLOAD, [])
        self._lab, self._failing = lab, failing
        self.seen: list[ActivityView] = []

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        async with progress.counted(context, "uploading", of="rows.json") as sent:
            sent.expect(10)
            await asyncio.to_thread(sent.add, 4)
            self.seen.append(await self._shown(context, done=4))
            await asyncio.to_thread(sent.add, 6)
            self.seen.append(await self._shown(context, done=10))
            if self._failing:
                raise ValueError("a fault of ours")
        return {}

    async def _shown(self, context: StepContext, done: int) -> ActivityView:
        async with asyncio.timeout(20):
            while True:
                found = (await service.get(self._lab.core, self._lab.admin, context.state.campaign_id)).cycle
                if found is not None and found.activity is not None and found.activity.done == done:
                    return found.activity
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("failing", [False, True])
async def test_what_is_counted_in_threads_is_told_while_it_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    monkeypatch.setattr(progress, "REPORT_S", 0.01)
    step, id_ = Sending(lab, failing), await made(lab)
    await engine(lab, Shop(), Points(), real=[step]).advance(id_)
    told = [(each.what, each.done, each.total, each.unit, each.of) for each in step.seen]
    assert told == [("uploading", 4, 10, "bytes", "rows.json"), ("uploading", 10, 10, "bytes", "rows.json")]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("progress of")], "nobody tells on"


def task(status: str = "running", kind: str = "merge", **said: Any) -> TaskView:
    return TaskView(
        id=f"task-{kind}", workflow_id="wf-1", name="one", kind=kind, status=status, owner="ada",
        created_at=datetime.now(UTC), progress=ProgressView(**said) if said else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "said", "told"),
    [
        ("data", {"phase": "shuffling", "step": 1000, "max_steps": 2000}, ("shuffling", 1000, 2000, "rows")),
        ("data", {"phase": "downloading"}, ("downloading", 0, None, None)),
        ("merge", {"phase": "merging", "step": 40, "max_steps": 80}, ("merging", 40, 80, "MiB")),
        ("lora_sft", {"phase": "training", "step": 3, "max_steps": 8}, ("training", 3, 8, "steps")),
        ("evaluate", {"phase": "evaluating", "step": 3, "max_steps": 8}, ("evaluating", 3, 8, None)),
    ],
)
def test_what_a_task_has_said_is_taken_over(kind: str, said: dict[str, Any], told: tuple[Any, ...]) -> None:
    found = progress.of_tasks([task("completed", "data", phase="reading"), task(kind=kind, **said)])
    assert found is not None
    assert (found.what, found.done, found.total, found.unit, found.of) == (*told, f"task-{kind}")


def test_a_task_that_has_no_worker_yet_is_waited_for() -> None:
    found = progress.of_tasks([task("pending", "data"), task("queued")])
    assert found is not None
    assert (found.what, found.of) == ("waiting", "task-merge")
    assert progress.of_tasks([task()]) is None, "it has said nothing yet"
    assert progress.of_tasks([task("completed", phase="merging")]) is None


@pytest.mark.parametrize(
    ("status", "why", "said"),
    [
        ("queued", None, "for a worker: task-merge is queued"),
        ("queued", "waiting: worker-1 is full.", "for a worker: task-merge is queued (waiting: worker-1 is full)"),
        (
            "queued",
            "unschedulable: no worker is registered.",
            "for a worker: task-merge is queued (unschedulable: no worker is registered); action required: "
            "`tunefleet why task-merge` shows what each worker lacks",
        ),
        ("running", None, None),
        ("pending", "waits for task-data.", None),
    ],
)
async def test_a_wait_for_a_worker_says_for_which_task_and_why(status: str, why: str | None, said: str | None) -> None:
    one = task(status).model_copy(update={"why": why})
    assert progress.waits_in([task("completed", "data"), one]) == said
    assert progress.waits_in([task("running", "data"), one]) is None

    async def get(_: str) -> Any:
        return one

    client: Any = SimpleNamespace(tasks=SimpleNamespace(get=get))
    assert (await LocalProvider(client).look("task-merge")).detail == (said or f"task-merge is {status}")


async def test_what_cannot_be_told_fails_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_S", 0.01)
    told, report = 0, CampaignRepository.report

    async def failing(self: CampaignRepository, *given: Any) -> None:
        nonlocal told
        told += 1
        if told < 3:
            raise StoreError("The disk is full.")
        await report(self, *given)

    monkeypatch.setattr(CampaignRepository, "report", failing)
    step, id_ = Sending(lab), await made(lab)
    await engine(lab, Shop(), Points(), real=[step]).advance(id_)
    assert [each.done for each in step.seen] == [4, 10]
    found = (await service.get(lab.core, lab.admin, id_)).cycle_list[-1]
    assert found.status == "completed"
