"""Any graph of tasks, any outcomes in any order: nobody is forgotten, and nobody runs too early."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.orchestrator.lab import open_lab
from tests.unit.orchestrator.pipelines import Node, Pipelines, stage
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.orchestrator.tasks import tasks
from tunefleet.schemas.api import TaskView, WorkflowDetail
from tunefleet.schemas.worker_link import Offer

FINAL = {"completed", "failed", "cancelled", "skipped"}
BEGUN = {"queued", "dispatched", "running", "paused", "completed"}
STEPS = 60
LAST_STEPS = 40


def graph(random: Random) -> list[Node]:
    """Draw a workflow, its tasks listed in any order."""
    names = [f"t{number}" for number in range(random.randint(2, 7))]
    nodes = []
    for number, name in enumerate(names):
        above = [other for other in names[:number] if random.random() < 0.45]
        spec: dict[str, Any] = {"data": {"type": "list", "items": ["a", "b", "c"]}}
        if random.random() < 0.3:
            spec["retry"] = {"max_attempts": 2, "backoff_s": 0}
        if random.random() < 0.25:
            spec["parallel"] = {"enabled": True, "max_shards": 2}
        if random.random() < 0.2:
            spec["limits"] = {"max_queue_s": 5}
        if above and random.random() < 0.3:
            # A part that is cancelled, or the answer of a spread task, must be as good as any other.
            spec["data"] = {"type": "list", "items": [f"${{{above[0]}.result.items.0}}", "b"]}
        when = None
        if above and random.random() < 0.25:
            when = {"node": above[-1], "field": "count", "equals": random.choice([3, 2, 7])}
        nodes.append(stage(name, *above, spec=spec, when=when))
    random.shuffle(nodes)
    return nodes


def check(flow: WorkflowDetail) -> None:
    """What holds at every moment, whatever happened before."""
    by_id = {task.id: task for task in flow.tasks}
    for task in flow.tasks:
        above = [by_id[id_] for id_ in task.depends_on]
        states = {each.status for each in above}
        if task.status == "pending":
            assert not states & {"failed", "cancelled", "skipped"}, f"{task.name} waits in vain"
            assert states - {"completed"}, f"{task.name} is forgotten"
        if task.status in BEGUN:
            assert states <= {"completed"}, f"{task.name} is too early"
        for reason, state in (("upstream_failed", "failed"), ("upstream_skipped", "skipped")):
            assert task.reason != reason or state in states, f"{task.name} has no reason to be {task.status}"
        check_parts(task, [each for each in flow.tasks if each.shard_of == task.id])


def check_parts(whole: TaskView, parts: list[TaskView]) -> None:
    if not parts:
        return
    if whole.status == "completed":
        assert {part.status for part in parts} == {"completed"}
    elif whole.status == "running":
        assert any(part.status not in FINAL for part in parts), f"{whole.name} waits for parts that have ended"
    else:
        assert whole.status in {"failed", "cancelled"}
        assert all(part.status in FINAL or part.desired == "cancel" for part in parts), f"{whole.name} left parts"


async def act(pipe: Pipelines, random: Random, held: list[Offer], flow: WorkflowDetail, only: str | None) -> None:
    """Let something happen."""
    worker = pipe.worker
    what = only or random.choices(["take", "finish", "fail", "cancel", "wait", "lose"], [4, 9, 2, 1, 0.5, 0.3])[0]
    alive = [task for task in flow.tasks if task.status not in FINAL]
    if what == "take":
        worker.want = {"light": random.randint(1, 4)}
        held += await pipe.take()
    elif what in {"finish", "fail"} and held:
        offer = held.pop(random.randrange(len(held)))
        reason = random.choice(["bad_input", "network", "crashed"])
        wished = next((task for task in flow.tasks if task.id == offer.task_id), None)
        if wished is not None and wished.desired == "cancel":
            await worker.finish(offer.token, "cancelled", "aborted")
        else:
            await pipe.end(offer, EchoExecutor().run(offer) if what == "finish" else reason)
    elif what == "cancel" and alive:
        await tasks.cancel(pipe.lab.core, pipe.lab.admin, random.choice(alive).id)
    elif what == "wait":
        await pipe.lab.sweep(6, alive=(worker,))
    elif what == "lose":
        await pipe.lab.sweep(pipe.lab.core.settings.lost_after_s + 2)
        held.clear()
        worker.holding.clear()
        await worker.register()


@pytest.mark.proof
@settings(max_examples=20)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_nobody_is_forgotten_and_nobody_runs_too_early(fresh_data: Path, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(fresh_data, Path(folder, "data"), Random(seed)))


async def story(fresh_data: Path, data: Path, random: Random) -> None:
    """One workflow from its submit to its end."""
    async with open_lab(fresh_data, data) as lab:
        pipe = Pipelines(lab, await lab.online())
        flow = await pipe.submit(*graph(random))
        held: list[Offer] = []
        check(flow)
        for step in range(STEPS + LAST_STEPS):
            # In the end nothing goes wrong any more, so that every workflow comes to its end.
            await act(pipe, random, held, flow, only=None if step < STEPS else ("take", "finish")[step % 2])
            flow = await pipe.see(flow)
            check(flow)
            if flow.status != "running":
                break
    states = {task.status for task in flow.tasks}
    assert states <= FINAL, "nothing moves any more"
    expected = next((state for state in ("failed", "cancelled") if state in states), "completed")
    assert flow.status == expected
