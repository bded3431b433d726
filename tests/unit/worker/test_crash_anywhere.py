"""The worker is killed before each of its effects in turn; the next one on the folder finishes the same story."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.worker.fakes import Mortal, Running, World
from tunefleet.schemas.worker_link import InputRef, MergedTask

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

STORY = {"data.path": InputRef(digest="cd" * 32, name="rows")}
MOST_EFFECTS = 40


def _tell(world: World, token: str) -> None:
    """The story's end: the job completes and the server has its finish."""
    world.server.wait_for(lambda: world.jobs.all or world.server.rows[token].finish)
    for job in world.jobs.all:
        if job.ended is None:
            job.end()
    world.server.finished(token)
    world.server.wait_for(lambda: not world.records())


def _story_until_death(results: Path, die_at: int) -> tuple[World, bool]:
    """Run the story with a worker that dies before its n-th effect; `True` if it did."""
    world = World(results)
    world.jobs.ends_at_once = True
    token = world.server.offer(inputs=STORY)
    mortal = Mortal(die_at)
    running = Running(world, mortal=mortal)
    running.__enter__()
    world.server.wait_for(lambda: mortal.dead.is_set() or (world.server.rows[token].finish and not world.records()))
    died = mortal.dead.is_set()
    running.bury()
    return world, died


@pytest.mark.parametrize("die_at", range(1, 16))
def test_the_story_ends_the_same_wherever_the_worker_is_killed(tmp_path: Path, die_at: int) -> None:
    world, died = _story_until_death(tmp_path / "results", die_at)
    token = next(iter(world.server.rows))
    with Running(world):
        if world.server.rows[token].finish is None or world.records():
            _tell(world, token)
    finish = world.server.rows[token].finish
    assert finish is not None
    assert finish.outcome == "completed"
    assert len(world.jobs.all) == 1, "killing the worker never runs a training twice"
    assert {name for _, name, _ in world.files.pushed} == {"final_lora"}
    assert not world.records()
    assert died or die_at > 8, "the story has at least eight effects"


OTHER = MergedTask(token="att-task-2-1.secret", task_id="task-2", workflow_id="wf-1", attempt=1, name="two", spec={})


@pytest.mark.parametrize("die_at", range(1, 20))
def test_tasks_of_one_run_keep_their_own_results_wherever_the_worker_is_killed(tmp_path: Path, die_at: int) -> None:
    world = World(tmp_path / "results")
    world.jobs.ends_at_once = True
    tokens = (world.server.offer(inputs=STORY, merged=(OTHER,)), OTHER.token)
    mortal = Mortal(die_at)
    running = Running(world, mortal=mortal)
    running.__enter__()

    def over() -> bool:
        return all(world.server.rows[token].finish for token in tokens) and not world.records()

    world.server.wait_for(lambda: mortal.dead.is_set() or over())
    died = mortal.dead.is_set()
    running.bury()
    with Running(world):
        world.server.wait_for(over)
    first, second = (world.server.finished(token) for token in tokens)
    assert (first.outcome, second.outcome) == ("completed", "completed")
    assert "children" not in first.result
    assert second.result["items"] == ["of task-2"]
    assert {task_id for task_id, _, _ in world.files.pushed} == {"task-1", "task-2"}
    assert len(world.jobs.all) == 1
    assert died or die_at > 9, "the story has at least nine effects"
