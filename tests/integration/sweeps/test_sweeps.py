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


def test_a_mistake_of_the_file_ends_the_sweep_and_other_failures_are_counted(fleet: LocalFleet) -> None:
    wrong = document("{trials: 9, parameters: {training.learning_rate: {min: 1e-4, max: 1e-2, log: true}}}")
    some = document(
        "{sampler: grid, max_failures: 1, parameters: {lora.target_modules: [[q_proj], [x_proj], [y_proj], [v_proj]]}}"
    )
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        mistaken = client.sweep(wrong.replace("[q_proj, v_proj]", "[no_such_module]"))
        counted = client.sweep(some)
        ended = client.sweeps.wait(mistaken.id, timeout_s=240)
        assert (ended.status, ended.states) == ("failed", {"failed": 1}), "not nine times the same"
        assert "no_such_module" in (ended.reason or "")
        ended = client.sweeps.wait(counted.id, timeout_s=240)
        assert (ended.status, ended.states) == ("failed", {"completed": 1, "failed": 2}), ended.reason
        assert "2 trials failed (max_failures: 1)" in (ended.reason or "")
        assert ended.best is not None, "what was found is kept"
        client.sweeps.remove(counted.id)
        assert client.tasks.get(ended.best.task_id).status == "completed"


def test_a_budget_stops_running_trials_and_cancels_queued_ones(fleet: LocalFleet) -> None:
    long = "{trials: 9, parallel: 4, max_hours: 0.006, parameters: {training.learning_rate: {min: 1e-4, max: 1e-2}}}"
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        made = client.sweep(document(long, steps=5000))
        ended = client.sweeps.wait(made.id, timeout_s=240)
        assert (ended.status, ended.states) == ("failed", {"stopped": 4})
        assert ended.reason == "The budget of 0.006 hours is used up. No trial completed."
        runs = [client.tasks.get(each.task_id) for each in ended.trial_list]
        assert {run.status for run in runs} <= {"completed", "cancelled"}
        assert "completed" in {run.status for run in runs}, "what ran is kept"
        assert all(run.reason == "stopped_early" for run in runs if run.status == "completed")
