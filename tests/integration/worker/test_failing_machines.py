"""A real server with two real workers, one of which cannot run a task; and tasks that no worker can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.story import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

# Fails the first time, wherever that is: the machine's disk is full, or it lacks a package.
FAILS_ONCE = """apiVersion: tunefleet/v1
metadata: {{name: once}}
spec:
  taskType: command
  command: [sh, -c, "test -e {marker} || {{ touch {marker}; echo '{message}' >&2; exit 1; }}"]
  retry: {{max_attempts: 3, backoff_s: 0}}
"""
TAGGED = """apiVersion: tunefleet/v1
metadata: {name: tagged}
spec: {taskType: echo, data: {type: list, items: [a]}, resources: {tags: [lab]}, limits: {no_worker_grace_s: 2}}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Client]:
    environment = {"TUNEFLEET_WARM_START": "false", "TUNEFLEET_ALLOW_CODE": "true"}
    with (
        LocalFleet(
            tmp_path_factory.mktemp("fleet"), port=free_port(), workers=2, environment=environment, save_client=False
        ) as fleet,
        Client(fleet.url, fleet.key) as client,
    ):
        until(lambda: len([each for each in client.workers.list().items if each.status == "online"]) == 2, "workers")
        yield client


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("disk_full", "OSError: [Errno 28] No space left on device"),
        ("machine_error", "RuntimeError: CUDA error: no kernel image is available"),
    ],
)
def test_what_one_machine_cannot_do_another_does(client: Client, tmp_path: Path, reason: str, message: str) -> None:
    run = client.submit(FAILS_ONCE.format(marker=tmp_path / "marker", message=message))
    task = run.wait(timeout_s=60)
    first, second = task.attempt_list
    assert (task.status, first.reason, second.reason) == ("completed", reason, "finished"), task.error
    assert first.worker_id != second.worker_id


def test_the_only_able_worker_gets_it_again_later_and_why_says_so(client: Client, tmp_path: Path) -> None:
    worker = client.workers.list().items[0].id
    document = FAILS_ONCE.format(marker=tmp_path / "marker", message="No space left on device")
    run = client.submit(document + f"  resources: {{tags: [{worker}]}}\n")
    until(lambda: client.tasks.get(run.task_id).reason == "disk_full", "its first attempt has failed")
    why = client.tasks.why(run.task_id).why or ""
    assert f"{worker} failed it" in why
    assert "(disk full) and gets it again in " in why
    client.tasks.cancel(run.task_id)


def test_a_task_that_no_worker_can_run_fails_with_the_reason(client: Client) -> None:
    task = client.submit(TAGGED).wait(timeout_s=60)
    assert (task.status, task.reason) == ("failed", "no_worker")
    assert "lacks the tag lab" in (task.error or "")
