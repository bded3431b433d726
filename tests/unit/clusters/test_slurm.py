"""What is said to Slurm, and how its answers are read; its commands are stand-ins that write down what they get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunefleet.integrations.clusters import NodeRequest
from tunefleet.integrations.clusters.slurm import options_of, script_of

ASK = NodeRequest(
    "tunefleet-task_a-1", 1, 1, ("tunefleet", "worker", "--once", "task_a"), {"TUNEFLEET_WORKER_KEY": "geheim"}
)
LOG = Path("/shared/nodes/x.log")


def test_the_least_that_is_asked_leaves_the_rest_to_the_cluster() -> None:
    assert options_of(ASK, LOG) == [
        "--parsable", "--export=ALL", "--requeue", "--open-mode=append", "--ntasks-per-node=1",
        "--job-name=tunefleet-task_a-1", "--nodes=1", "--output=/shared/nodes/x.log", "--signal=USR1@120",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"nodes": 2, "nodes_max": 2}, "--nodes=2"),
        ({"nodes": 2, "nodes_max": 4}, "--nodes=2-4"),
        ({"cpu": 8}, "--cpus-per-task=8"),
        ({"memory_bytes": 32 << 30}, "--mem=32768M"),
        ({"memory_bytes": (1 << 20) + 1}, "--mem=2M"),
        ({"gpu_count": 2}, "--gres=gpu:2"),
        ({"gpu_count": 2, "options": {"gpu_type": "a100"}}, "--gres=gpu:a100:2"),
        ({"options": {"exclusive": "true"}}, "--exclusive"),
        ({"options": {"partition": "gpu"}}, "--partition=gpu"),
        ({"options": {"time": "2-12:30:00"}}, "--time=2-12:30:00"),
        ({"grace_s": 300.0}, "--signal=USR1@300"),
    ],
)
def test_what_is_asked_for_stands_in_an_option(changes: dict[str, Any], option: str) -> None:
    found = options_of(replace(ASK, **changes), LOG)
    assert option in found
    assert len([each for each in found if each.partition("=")[0] == option.partition("=")[0]]) == 1
    assert not [each for each in found if each.startswith("--gpu_type")]


def test_the_first_node_that_ends_ends_no_other() -> None:
    (line,) = [line for line in script_of(ASK.command).splitlines() if line.startswith("srun")]
    assert line.startswith("srun --kill-on-bad-exit=0 --wait=0 bash -c ")
