"""One training on two machines: it ends with what one machine would have made of it."""

from __future__ import annotations

import pytest

from tests.integration.gangs.cluster import Cluster, document
from tunefleet.client.routes import workflow_routes

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

STEPS = 3


def test_one_training_runs_on_both_machines_and_the_first_node_alone_reports(machines: Cluster) -> None:
    spread = machines.submit(document(STEPS, "nodes: 2"))
    (tried,) = machines.ends(spread).attempt_list
    assert {node.worker_id for node in tried.nodes} == {"one", "two"}
    assert [step for step, _ in machines.losses(spread)] == list(range(1, STEPS + 1))
    assert machines.weights(spread)


def test_two_nodes_train_what_two_processes_of_one_would_and_a_pause_changes_nothing(machines: Cluster) -> None:
    steps = 12
    spread, alone = (machines.submit(document(steps, each)) for each in ("nodes: 2", "processes: 2"))
    machines.ends(spread)
    machines.ends(alone)
    assert machines.losses(spread) == machines.losses(alone)
    assert machines.weights(spread) == machines.weights(alone)

    paused = machines.submit(document(steps, "nodes: 2"))
    machines.reached(paused, 4)
    machines.ask(workflow_routes.pause_task(paused))
    machines.until(lambda: machines.task(paused).status == "paused", "the pause")
    machines.until(lambda: not machines.processes("one", paused), "the end on the first machine")
    machines.until(lambda: not machines.processes("two", paused), "the end on the second machine")
    machines.ask(workflow_routes.resume_task(paused))
    done = machines.ends(paused)
    assert [each.reason for each in done.attempt_list] == ["paused", "finished"]
    assert machines.losses(paused) == machines.losses(spread)
    assert machines.weights(paused) == machines.weights(spread)
