"""Sweeps on a real server and worker: every trial is a run, and the best one is found."""

from __future__ import annotations

import pytest

from tests.integration.sweeps.documents import document
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300)]


def test_a_grid_runs_every_combination_once_and_ranks_it(fleet: LocalFleet) -> None:
    grid = "{sampler: grid, parallel: 2, parameters: {training.learning_rate: [1e-5, 1e-2], lora.r: [2, 4]}}"
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        made = client.sweep(document(grid))
        assert (made.status, made.trials, made.trial_list) == ("running", 4, ())
        done = client.sweeps.wait(made.id, timeout_s=240)
        assert (done.status, done.reason, done.states) == ("completed", None, {"completed": 4})
        combinations = {
            (each.parameters["training.learning_rate"], each.parameters["lora.r"]) for each in done.trial_list
        }
        assert combinations == {(1e-5, 2), (1e-5, 4), (1e-2, 2), (1e-2, 4)}
        values = [each.value for each in done.trial_list]
        assert values == sorted(values), "the leaderboard begins with the best one"
        best = done.trial_list[0]
        assert best == done.best
        assert best.parameters["training.learning_rate"] == 1e-2, "eight steps with 1e-5 learn nothing"
        assert done.steps == 4 * 8
        for each in done.trial_list:
            task = client.tasks.get(each.task_id)
            assert task.tags == (made.id,)
            assert task.spec["lora"]["r"] == each.parameters["lora.r"]
            assert task.glance is None or task.glance.step == 8
        shares = client.sweeps.importance(made.id).shares
        assert max(shares, key=shares.get) == "training.learning_rate"
        # The best trial is a run like any other: it can be trained again, for longer.
        again = client.tasks.clone(best.task_id, {"training.max_steps": 2})
        assert client.tasks.wait(again.id, timeout_s=120).status == "completed"
