"""What is decided about workers, and equal tasks as one run: real worker processes over every link."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.transport.conftest import ECHO, Site, over_one_link
from tests.contract.transport.workers import PATIENCE_S, Workers, ask, ended, outputs, until
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

pytestmark = pytest.mark.proof


def computed(task: TaskDetail) -> int:
    """How many prompts its run has computed."""
    assert task.result is not None, task.error
    return int(task.result["result"]["usage"]["computed"])


@over_one_link
def test_fault_33_equal_tasks_run_as_one_and_everybody_gets_their_own(
    site: Site, workers: Workers, tmp_path: Path
) -> None:
    bob_key = site.client.keys.create("bob", "member").secret
    first = site.client.submit(ask("one", "same")).task_id
    second = site.client.submit(ask("same", "two")).task_id
    lost = site.client.submit(ask("forget")).task_id
    with Client(site.url, bob_key) as bob:
        theirs = bob.submit(ask("same")).task_id
    workers.start("merger")
    done = {task_id: ended(site, task_id) for task_id in (first, second, lost, theirs)}
    assert outputs(done[first]) == ["ONE", "SAME"]
    assert outputs(done[second]) == ["SAME", "TWO"]
    assert (done[second].merged_into, done[first].merged_into, done[theirs].merged_into) == (first, None, None)
    # `same` was computed once for both of them; what bob asked was computed for bob.
    assert computed(done[first]) == 4
    assert outputs(done[theirs]) == ["SAME"]
    assert computed(done[theirs]) == 1
    # Who was forgotten has failed by name, and its next try ran by itself or with nobody who forgot it.
    assert "returned no result" in (done[lost].attempt_list[0].error or "")
    folder = tmp_path / "merger" / second
    assert json.loads((folder / "responses.json").read_text())["items"][1]["output"] == "TWO"
    assert json.loads((folder / "manifest.json").read_text())["task_id"] == second
    names = {file.name: file for file in site.client.artifacts.list(task_id=second).items}
    assert "answers.txt" in names


@over_one_link
def test_a_drained_worker_finishes_leaves_and_is_offline(site: Site, workers: Workers, tmp_path: Path) -> None:
    process = workers.start("drained")
    gate = tmp_path / "gate"
    running = site.client.submit(ask(f"wait:{gate}")).task_id
    until(lambda: site.client.tasks.get(running).status == "running", "the start of the task")
    assert site.client.workers.drain("drained").draining
    later = site.client.submit(ECHO).task_id
    assert "is draining" in (site.client.tasks.get(later).why or "")
    assert process.poll() is None
    gate.touch()
    assert ended(site, running).status == "completed"
    assert process.wait(PATIENCE_S) == 0
    view = site.client.workers.get("drained")
    assert (view.status, view.draining, view.cordoned) == ("offline", False, True)
    site.client.tasks.cancel(later)


@over_one_link
def test_a_drain_that_is_taken_back_leaves_the_worker_at_work(site: Site, workers: Workers, tmp_path: Path) -> None:
    process = workers.start("stays")
    gate = tmp_path / "gate"
    running = site.client.submit(ask(f"wait:{gate}")).task_id
    until(lambda: site.client.tasks.get(running).status == "running", "the start of the task")
    site.client.workers.drain("stays")
    assert not site.client.workers.uncordon("stays").draining
    gate.touch()
    assert ended(site, running).status == "completed"
    assert ended(site, site.client.submit(ECHO).task_id).status == "completed"
    assert process.poll() is None


def test_fault_30_a_task_calls_back_the_worker_that_alone_can_run_it(site: Site, workers: Workers) -> None:
    workers.start("rests")
    assert site.client.workers.elastic("rests", enabled=False).elastic_disabled
    assert ended(site, site.client.submit(ECHO).task_id).status == "completed"
    assert not site.client.workers.get("rests").elastic_disabled
