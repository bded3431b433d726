"""What real jobs find in their environment: nothing that opens the server's doors, all that their worker was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.redis.process import RedisProcess
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]

LOOKER = Path(__file__).resolve().parents[2] / "fakes" / "looker"
"""An executor whose job tells what is in its environment."""
JOBS = {"TUNEFLEET_WARM_START": "false", "TUNEFLEET_ALLOW_CODE": "true", "PYTHONPATH": str(LOOKER)}
LOOK = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: look}
spec: {taskType: python, code: "def main(inputs): pass"}
"""
BUCKET = {
    "AWS_ACCESS_KEY_ID": "bucket-id",
    "AWS_SECRET_ACCESS_KEY": "bucket-secret",
    "AWS_SESSION_TOKEN": "bucket-session",
    "AWS_PROFILE": "bucket-profile",
    "AWS_REGION": "eu-central-1",
}
SERVERS = {
    "TUNEFLEET_SHARED_TOKEN": "shared-secret",
    "TUNEFLEET_KEY": "tf_client-secret",
    "TUNEFLEET_SMTP_URL": "smtp://bot:mail-secret@localhost:587",
}


def _found(client: Client, **overrides: Any) -> dict[str, str]:
    """Return the environment of a job."""
    run = client.submit(LOOK, overrides={key.replace("__", "."): value for key, value in overrides.items()})
    ended = run.wait(timeout_s=120)
    assert ended.status == "completed", (ended.error, ended.detail)
    assert ended.result is not None
    environment: dict[str, str] = ended.result["result"]["environment"]
    return environment


def test_jobs_of_up_inherit_no_door_of_the_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_port: Callable[[], int],
    redis_server: Callable[..., RedisProcess],
) -> None:
    redis = redis_server()
    with redis.client as opened:
        opened.execute_command("ACL", "SETUSER", "fleet", "on", ">redis-secret", "~*", "&*", "+@all")
    address = redis.url.replace("://", "://fleet:redis-secret@")
    database = f"sqlite:///{tmp_path / 'database-secret.db'}"
    doors = {**BUCKET, **SERVERS, "TUNEFLEET_REDIS_URL": address, "TUNEFLEET_DATABASE_URL": database}
    for name, value in {**doors, "EVERYDAY": "is inherited"}.items():
        monkeypatch.setenv(name, value)
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=JOBS, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        found = _found(client)
        # Now that it has run a job: a process that is only just being made has no environment yet.
        server, worker = (psutil.Process(fleet.pid(name)).environ() for name in ("server", "worker"))
    assert {name for name in doors if name not in server} == {"TUNEFLEET_KEY"}, "the server has what it needs"
    assert {name for name in doors if name in worker} == {"TUNEFLEET_REDIS_URL"}, "the worker has its link alone"
    assert found["EVERYDAY"] == "is inherited"
    assert [name for name in doors if name in found] == []
    assert [name for name, value in found.items() if "secret" in value] == [], "under no other name either"


def test_a_worker_that_is_given_amazons_variables_passes_them_on(tmp_path: Path, free_port: Callable[[], int]) -> None:
    fleet = LocalFleet(tmp_path / "data", port=free_port(), workers=0, environment=JOBS, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        key = (fleet.data / "keys" / "worker.key").read_text().strip()
        with _worker(tmp_path / "own", {**JOBS, **BUCKET, "TUNEFLEET_WORKER_KEY": key}, fleet.url):
            found = _found(client)
    assert {name: found.get(name) for name in BUCKET} == BUCKET
    assert key not in found.values()


@contextmanager
def _worker(folder: Path, environment: Mapping[str, str], url: str) -> Iterator[None]:
    """Run a worker as somebody starts it by hand."""
    command = [sys.executable, "-m", "tunefleet.worker", "--server", url, "--results-dir", str(folder)]
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
