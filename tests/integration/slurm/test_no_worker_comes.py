"""Nodes of a real Slurm on which no worker comes up: after some tries the task fails, and says where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.ways import PATIENCE_S, Way, with_slurm
from tests.integration.slurm.cluster import SlurmCluster
from tests.integration.slurm.training import document

pytestmark = [pytest.mark.proof, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command") / "tunefleet"


@pytest.fixture(scope="module")
def way(
    slurm: SlurmCluster, command: Path, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Way]:
    settings = {"TUNEFLEET_NODES_COMMAND": str(command), "TUNEFLEET_NODES_PATIENCE_S": "1"}
    with with_slurm(slurm, tmp_path_factory.mktemp("way"), free_port, nodes=1, **settings) as way:
        yield way


@pytest.mark.parametrize(
    ("program", "told"),
    [
        pytest.param(None, "failed (exit code 127); its log is", id="not there"),
        pytest.param(
            "#!/bin/sh\nexec sleep 600\n",
            "only 0 of its 1 nodes connected within 1 s (cancelled; its log is",
            id="hangs",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_after_three_jobs_the_task_fails_and_names_the_log(
    way: Way, slurm: SlurmCluster, command: Path, program: str | None, told: str
) -> None:
    command.unlink(missing_ok=True)
    if program is not None:
        command.write_text(program)
        command.chmod(0o755)
    task = way.client.tasks.wait(way.client.submit(document()).task_id, timeout_s=PATIENCE_S)
    assert (task.status, task.reason) == ("failed", "no_nodes")
    assert task.error is not None
    log = way.fleet.data.parent / "nodes" / f"tunefleet-{task.id}-3.log"
    assert f"3 jobs ended before a worker took the task; of the last one: {told} {log}" in task.error
    known = slurm.call("squeue", "--states=all", "--noheader", "--format=%j").splitlines()
    assert sorted(name for name in known if task.id in name) == [
        f"tunefleet-{task.id}-{number}" for number in (1, 2, 3)
    ]
    way.until(lambda: way.held() == 0, "the nodes given back")
