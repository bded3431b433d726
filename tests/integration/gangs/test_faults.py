"""What happens to a training on two machines when one of them does not do its part."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.gangs.cluster import Cluster, document
from tunefleet.client.routes import workflow_routes

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(500)]

STEPS = 30


def whole(machines: Cluster, task_id: str) -> None:
    """The series has every step once."""
    assert [step for step, _ in machines.losses(task_id)] == list(range(1, STEPS + 1))


def nothing_runs(machines: Cluster, task_id: str) -> bool:
    """Whether no process of a task lives on either machine."""
    return not machines.processes("one", task_id) and not machines.processes("two", task_id)


def other(machines: Cluster, task_id: str) -> str:
    """Return the worker that is not the first node."""
    first = machines.task(task_id).worker_id
    return "two" if first == "one" else "one"


def test_a_killed_node_takes_all_back_to_the_newest_checkpoint(machines: Cluster) -> None:
    task_id = machines.submit(document(STEPS, "nodes: 2"))
    machines.uploaded(task_id)
    machines.kill_ranks(other(machines, task_id), task_id)
    done = machines.ends(task_id)
    assert [each.reason for each in done.attempt_list] == ["killed", "finished"]
    assert "Node 1" in (done.attempt_list[0].error or "")
    whole(machines, task_id)


def test_a_node_that_has_the_result_already_does_not_let_the_others_wait(machines: Cluster) -> None:
    """The other's launcher is killed when all ranks have ended, and before it could say so."""
    task_id = machines.submit(document(STEPS, "nodes: 2"))
    machines.reached(task_id, 2)
    killed = other(machines, task_id)
    (launcher,) = (
        each
        for each in machines.processes(killed, task_id)
        if "tunefleet.workloads.distributed.torchrun" in each.cmdline()
    )
    launcher.suspend()
    first = machines.folder / (machines.task(task_id).worker_id or "") / task_id
    machines.until(lambda: (first / "responses.json").exists(), "the result at the first node")
    launcher.kill()
    done = machines.ends(task_id)
    assert [each.reason for each in done.attempt_list] == ["killed", "finished"]
    whole(machines, task_id)


def test_a_cancel_ends_both_nodes(machines: Cluster) -> None:
    task_id = machines.submit(document(2000, "nodes: 2"))
    machines.reached(task_id, 3)
    machines.ask(workflow_routes.cancel_task(task_id))
    machines.ends(task_id, "cancelled")
    machines.until(lambda: nothing_runs(machines, task_id), "the end of both nodes")


def test_a_node_that_never_comes_holds_nobody_else(machines: Cluster) -> None:
    """The worker stands still when it is offered its part: all is given back, and another task gets the other one."""
    machines.until(lambda: all(not each.running for each in machines.ask(workflow_routes.list_workers()).items), "rest")
    still = machines.workers["two"].pid
    os.kill(still, signal.SIGSTOP)
    try:
        task_id = machines.submit(document(STEPS, "nodes: 2"))
        alone = machines.submit(document(3, "nodes: 1"))
        machines.ends(alone)
        assert machines.task(task_id).status in {"queued", "dispatched"}
    finally:
        os.kill(still, signal.SIGCONT)
    machines.ends(task_id)
    whole(machines, task_id)


def test_a_machine_that_is_gone_is_the_cause_and_the_training_goes_on_with_fewer(machines: Cluster) -> None:
    task_id = machines.submit(document(STEPS, 'nodes: "1:2"'))
    machines.uploaded(task_id)
    assert len(machines.task(task_id).attempt_list[0].nodes) == 2
    gone = other(machines, task_id)
    machines.kill_machine(gone, task_id)
    try:
        done = machines.ends(task_id)
        assert [each.reason for each in done.attempt_list] == ["worker_lost", "finished"]
        assert gone in (done.attempt_list[0].error or "")
        assert done.attempt_list[1].nodes == ()
        whole(machines, task_id)
    finally:
        machines.cable(gone, "up")
        machines.start_worker(gone)
    machines.await_workers()


def test_the_loss_of_the_first_node_is_no_end(machines: Cluster) -> None:
    task_id = machines.submit(document(STEPS, "nodes: 2"))
    machines.uploaded(task_id)
    gone = machines.task(task_id).worker_id or ""
    machines.kill_machine(gone, task_id)
    machines.until(lambda: machines.task(task_id).status == "queued", "the end of the try")
    machines.until(lambda: nothing_runs(machines, task_id), "the end of the other node")
    machines.cable(gone, "up")
    machines.start_worker(gone)
    done = machines.ends(task_id)
    assert [each.reason for each in done.attempt_list] == ["worker_lost", "finished"]
    whole(machines, task_id)


def test_a_partition_in_the_middle_is_over_when_the_network_is_back(machines: Cluster) -> None:
    task_id = machines.submit(document(STEPS, "nodes: 2"))
    machines.uploaded(task_id)
    cut = other(machines, task_id)
    machines.cable(cut, "down")
    machines.until(lambda: machines.task(task_id).attempt_list[0].state == "void", "the end of the try")
    machines.cable(cut, "up")
    done = machines.ends(task_id)
    assert done.attempt_list[0].reason == "worker_lost"
    whole(machines, task_id)
