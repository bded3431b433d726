"""ASHA on a real fleet whose server is killed: no trial is lost or doubled, and what falls behind stops early."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.story import until
from tests.integration.sweeps.documents import document
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

STEPS = 120


def test_no_trial_is_lost_or_doubled_when_the_server_is_killed(fleet: LocalFleet) -> None:
    sweep = (
        "{sampler: grid, parallel: 2, pruner: {name: asha, reduction_factor: 2}, "
        "parameters: {training.learning_rate: [1e-2, 1e-6, 3e-3, 1e-7, 1e-3]}}"
    )
    with Client(fleet.url, fleet.key, patience_s=60) as client:
        made = client.sweep(document(sweep, steps=STEPS))

        def started(count: int) -> bool:
            return len(client.sweeps.get(made.id).trial_list) >= count

        for count in (1, 3):
            until(lambda count=count: started(count), f"trial {count}", within_s=120)
            pid = fleet.pid("server")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: fleet.pid("server") not in {pid, None}, "the server is started again", within_s=60)
        done = client.sweeps.wait(made.id, timeout_s=300)
        assert (done.status, done.reason) == ("completed", None)
        trials = sorted(done.trial_list, key=lambda each: each.number)
        assert [each.number for each in trials] == [0, 1, 2, 3, 4]
        assert {each.parameters["training.learning_rate"] for each in trials} == {1e-2, 1e-6, 3e-3, 1e-7, 1e-3}
        runs = [run for run in client.tasks.iterate() if made.id in run.tags]
        assert sorted(run.id for run in runs) == sorted(each.task_id or "" for each in trials), "one run for each trial"
        assert {len(client.tasks.get(run.id).attempt_list) for run in runs} == {1}, "runs go on without a server"
        assert done.best is not None
        assert done.best.parameters["training.learning_rate"] >= 3e-3
        pruned = [each for each in trials if each.state == "pruned"]
        assert pruned
        for each in pruned:
            run = client.tasks.get(each.task_id)
            assert (run.status, run.reason) == ("completed", "stopped_early")
            assert each.steps is not None
            assert each.steps < STEPS, "it has freed its slot early"
            (command,) = client.tasks.commands(each.task_id)
            assert (command.command, command.state) == ("graceful_stop", "applied")
