"""Tasks that one run computes together, at the worker: each its own token, folder, result and end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.worker.fakes import FakeEnd, FakeJob, Running, World
from tunefleet.executors.base import LightExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_link import Finish, MergedTask, Offer
from tunefleet.worker.jobs.discard import Discarder
from tunefleet.worker.jobs.inline_tasks import LightTasks
from tunefleet.worker.outbox import Outbox


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "results")


def part(task_id: str, **spec: Any) -> MergedTask:
    return MergedTask(
        token=f"att-{task_id}-1.secret", task_id=task_id, workflow_id="wf-1", attempt=1, name=task_id, spec=spec
    )


def offered(world: World, *others: str) -> tuple[str, ...]:
    """Offer a task and what goes along with it; returns their tokens."""
    parts = tuple(part(task_id, data={"items": [task_id]}) for task_id in others)
    return (world.server.offer(merged=parts), *(each.token for each in parts))


def ends(job: FakeJob, children: dict[str, Any]) -> None:
    """End a run well, with something for others."""
    job.end()
    job.ended = None  # it has not been looked at yet: its result is completed first
    result = json.loads(job.folder.responses_json.read_text())
    job.folder.responses_json.write_text(json.dumps({**result, "children": children}))
    job.ended = FakeEnd()


def finishes(world: World, tokens: tuple[str, ...]) -> list[Finish]:
    return [world.server.finished(token) for token in tokens]


def test_each_task_of_a_run_has_its_own_folder_result_and_files(world: World) -> None:
    tokens = offered(world, "task-2", "task-3")
    with Running(world):
        job = world.job()
        assert [(child.task_id, child.spec) for child in job.job.merge_children] == [
            ("task-2", {"data": {"items": ["task-2"]}}),
            ("task-3", {"data": {"items": ["task-3"]}}),
        ]
        ends(job, {"task-2": {"items": ["two"]}, "task-3": {"items": ["three"]}})
        first, two, three = finishes(world, tokens)
        world.server.wait_for(lambda: not world.records())
    assert "children" not in first.result
    assert (two.result["items"], three.result["items"]) == (["two"], ["three"])
    for task_id in ("task-2", "task-3"):
        folder = world.results / task_id
        assert json.loads((folder / "responses.json").read_text())["items"] == [
            {"task-2": "two", "task-3": "three"}[task_id]
        ]
        assert json.loads((folder / "manifest.json").read_text())["task_id"] == task_id
        assert (folder / "final_lora" / "adapter.bin").read_bytes() == task_id.encode()
        assert (task_id, "final_lora", "adapter") in world.files.pushed
    assert json.loads((world.results / "task-1" / "responses.json").read_text())["ok"] is True


def test_fault_33_who_is_missing_in_the_result_fails_by_name_and_gets_nobody_elses(world: World) -> None:
    tokens = offered(world, "task-2", "task-3")
    with Running(world):
        ends(world.job(), {"task-3": {"items": ["three"]}})
        first, two, three = finishes(world, tokens)
    assert (first.outcome, two.outcome, three.outcome) == ("completed", "failed", "completed")
    assert "task-2" in (two.error or "")
    assert two.result == {}
    assert not (world.results / "task-2" / "responses.json").exists()


def test_a_run_that_fails_gives_all_of_them_back(world: World) -> None:
    tokens = offered(world, "task-2")
    with Running(world):
        world.job().end(FakeEnd("failed", TaskReason.BAD_INPUT, "The rows of task-2 are no rows."))
        first, two = finishes(world, tokens)
    assert (first.outcome, first.error) == ("released", "The rows of task-2 are no rows.")
    assert two.outcome == "released"
    assert "task-1" in (two.error or "")


def test_a_cancelled_one_ends_at_once_and_the_others_go_on(world: World) -> None:
    tokens = offered(world, "task-2", "task-3")
    with Running(world):
        job = world.job()
        world.server.want(tokens[1], "cancel")
        assert world.server.finished(tokens[1]).outcome == "cancelled"
        assert job.cancels == []
        ends(job, {"task-2": {"items": ["two"]}, "task-3": {"items": ["three"]}})
        first, _, three = finishes(world, tokens)
    assert (first.outcome, three.outcome) == ("completed", "completed")
    assert not any(task_id == "task-2" for task_id, _, _ in world.files.pushed)


def test_the_run_ends_when_nobody_wants_any_of_it(world: World) -> None:
    tokens = offered(world, "task-2")
    with Running(world):
        job = world.job()
        world.server.want(tokens[0], "cancel")
        world.server.wait_for(lambda: [reached.token for reached in world.server.reached] == [tokens[0]])
        assert job.cancels == []
        world.server.void(tokens[1])
        assert world.server.finished(tokens[0]).outcome == "cancelled"
        assert len(job.cancels) == 1


def test_a_restarted_worker_holds_all_of_them_and_delivers_what_the_run_has_left(world: World) -> None:
    tokens = offered(world, "task-2")
    with Running(world):
        job = world.job()
    ends(job, {"task-2": {"items": ["two"]}})
    with Running(world):
        world.server.wait_for(lambda: len(world.server.registrations) == 2)
        assert set(world.server.registrations[-1].holding) == set(tokens)
        first, two = finishes(world, tokens)
    assert (first.outcome, two.outcome, two.result["items"]) == ("completed", "completed", ["two"])


def test_the_folder_of_a_removed_one_is_deleted(world: World) -> None:
    tokens = offered(world, "task-2")
    with Running(world) as running:
        ends(world.job(), {"task-2": {"items": ["two"]}})
        finishes(world, tokens)
        world.server.wait_for(lambda: not world.records())
        discarder = Discarder(world.results, running.site.outbox, lambda _: False)
        discarder.discard(["task-2"])
        discarder.close()
    assert not (world.results / "task-2").exists()


class Together(LightExecutor):
    """Answers each with its own items; forgets the one that is called lost."""

    kind = "inference"
    merges: ClassVar[bool] = True

    def run(self, offer: Offer) -> dict[str, Any]:
        if offer.spec.get("breaks"):
            raise RuntimeError("It broke.")
        children = {each.task_id: {"items": each.spec["data"]["items"]} for each in offer.merged if each.name != "lost"}
        return {"items": offer.spec["data"]["items"], "children": children}


def light_run(spec: dict[str, Any], *others: str) -> dict[str, Finish]:
    outbox = Outbox("w-1", "session")
    light = LightTasks(outbox, 1, Secrets({}))
    parts = tuple(part(task_id, data={"items": [task_id]}) for task_id in others)
    offer = Offer(
        token="att-1.secret", task_id="task-1", workflow_id="wf-1", attempt=1, kind="inference", name="one",
        spec=spec, merged=parts,
    )  # fmt: skip
    light.run([(Together(), offer)])
    with outbox.changed:
        assert outbox.changed.wait_for(lambda: len(outbox._finishes) == 1 + len(parts), timeout=10)
        found = outbox.draft(holding=(), want={}, wait_s=0).request.finishes
    light.close()
    return {finish.token: finish for finish in found}


def test_light_tasks_of_one_run_end_each_by_itself() -> None:
    found = light_run({"data": {"items": ["one"]}}, "two", "lost")
    assert found["att-1.secret"].result == {"items": ["one"]}
    assert found["att-two-1.secret"].result == {"items": ["two"]}
    assert (found["att-lost-1.secret"].outcome, found["att-lost-1.secret"].reason) == ("failed", "bug")


def test_a_light_run_that_breaks_gives_all_of_them_back() -> None:
    found = light_run({"breaks": True}, "two")
    assert {finish.outcome for finish in found.values()} == {"released"}
    assert "It broke." in (found["att-1.secret"].error or "")
