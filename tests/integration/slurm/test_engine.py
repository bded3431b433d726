"""Tasks with `engine: slurm` on a real Slurm: the end of the time, a cancel, what is refused, and kills."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.acceptance.ways import PATIENCE_S, Way, with_slurm
from tests.integration.slurm.cluster import CORES, SlurmCluster
from tests.integration.slurm.training import document
from tests.libraries import required
from tunefleet.schemas.api import TaskDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def way(slurm: SlurmCluster, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    required("trl")
    with with_slurm(slurm, tmp_path_factory.mktemp("way"), free_port, nodes=1) as way:
        yield way


@pytest.fixture(autouse=True)
def nothing_held(way: Way, slurm: SlurmCluster) -> Iterator[None]:
    yield
    try:
        way.until(lambda: way.held() == 0, "the nodes given back")
    finally:
        slurm.call("scancel", "--user", "root")


RESTART_S = 4.0


def _jobs(slurm: SlurmCluster, task_id: str) -> list[str]:
    """Return the jobs that Slurm has had for a task."""
    lines = slurm.call("squeue", "--states=all", "--noheader", "--format=%i %j").splitlines()
    return [line.split()[0] for line in lines if task_id in line]


def _job(way: Way, slurm: SlurmCluster, task_id: str) -> str:
    way.until(lambda: _jobs(slurm, task_id), f"a job for {task_id}")
    (job,) = _jobs(slurm, task_id)
    return job


def _no_nodes(task: TaskDetail) -> str:
    """Return what is said of a task that got no nodes."""
    assert (task.status, task.reason) == ("failed", "no_nodes"), task.error
    assert task.error is not None
    return task.error


@contextmanager
def _full(way: Way, slurm: SlurmCluster) -> Iterator[None]:
    """Somebody else has all nodes."""
    begun = slurm.folder / "begun"
    begun.unlink(missing_ok=True)
    options = ("--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={CORES}")
    job = slurm.submit(f"#!/bin/sh\n: > {begun}\nexec sleep 600\n", *options)
    # One that is ended before its script runs hears no SIGTERM, and holds its nodes until it is killed.
    way.until(begun.exists, "the nodes of somebody else")
    try:
        yield
    finally:
        slurm.call("scancel", job)


def _kill_server(way: Way) -> None:
    before = way.fleet.pid("server")
    assert before is not None
    os.kill(before, signal.SIGKILL)
    way.until(lambda: way.fleet.pid("server") not in {before, None}, "the server again")


def test_at_the_end_of_the_time_it_saves_and_goes_on_in_the_same_job(way: Way, slurm: SlurmCluster) -> None:
    task_id = way.client.submit(document(60)).task_id
    job = _job(way, slurm, task_id)
    way.reached(task_id, 2)
    slurm.call("scancel", "--signal=USR1", job)
    way.until(lambda: slurm.state(job) == ("PENDING", "BeginTime"), "the job in Slurm's queue again")

    task = way.task(task_id)
    assert (task.status, _tries(task)) == ("queued", ["released"]), way.logs()
    assert len(way.client.tasks.checkpoints(task_id)) == 1
    assert "exit code 75" in _log(way, task_id)
    assert not way.ranks(task_id)

    # Slurm itself waits for minutes. Told to start at once, a node that still ends the job fails the new start.
    time.sleep(RESTART_S)
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    done = way.client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert (done.status, done.error) == ("completed", None), way.logs()
    assert _tries(done) == ["released", "finished"]
    assert way.steps(task_id) == list(range(1, 61)), "each step once"
    assert _jobs(slurm, task_id) == [job], way.logs()


def _tries(task: TaskDetail) -> list[str | None]:
    """Return how the tries ended that were begun: a worker that is about to leave may be offered the task once more."""
    return [each.reason for each in task.attempt_list if each.reason != "not_accepted"]


def _log(way: Way, task_id: str) -> str:
    (log,) = (way.fleet.data.parent / "nodes").glob(f"*{task_id}*.log")
    return log.read_text()


def test_a_job_that_somebody_cancels_fails_its_task(way: Way, slurm: SlurmCluster) -> None:
    running = way.client.submit(document(2000)).task_id
    way.reached(running, 2)
    slurm.call("scancel", _job(way, slurm, running))
    with _full(way, slurm):
        waiting = way.client.submit(document()).task_id
        slurm.call("scancel", _job(way, slurm, waiting))
        for task_id in (waiting, running):
            assert "cancelled" in _no_nodes(way.client.tasks.wait(task_id, timeout_s=PATIENCE_S))
    way.until(lambda: not way.ranks(running), "the end of the trainer")
    assert slurm.state(_job(way, slurm, running))[0] == "CANCELLED"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (document(engine="{type: slurm, partition: nowhere}"), "Invalid partition name specified"),
        (document(hardware="{gpu: {count: 1}}"), "Invalid generic resource (gres) specification"),
    ],
)
def test_what_slurm_refuses_fails_the_task_in_its_words(way: Way, slurm: SlurmCluster, wanted: str, words: str) -> None:
    task = way.client.tasks.wait(way.client.submit(wanted).task_id, timeout_s=PATIENCE_S)
    assert words in _no_nodes(task)
    assert _jobs(slurm, task.id) == []


def test_a_killed_server_asks_for_no_second_job(way: Way, slurm: SlurmCluster) -> None:
    with _full(way, slurm):
        task_id = way.client.submit(document(40)).task_id
        job = _job(way, slurm, task_id)
        _kill_server(way)
        way.until(lambda: f"job {job} of slurm has no nodes yet" in (way.task(task_id).why or ""), "why it waits")
    way.reached(task_id, 2)
    _kill_server(way)
    done = way.client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert (done.status, done.error, done.attempts) == ("completed", None, 1), way.logs()
    assert way.steps(task_id) == list(range(1, 41)), "each step once"
    assert _jobs(slurm, task_id) == [job], way.logs()
