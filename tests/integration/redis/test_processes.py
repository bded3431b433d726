"""Server and workers as processes: `tunefleet up` on a Redis, one shared token, the server's log file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.contract.transport.conftest import ECHO
from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]
QUIET = {"TUNEFLEET_WARM_START": "false"}


def test_up_meets_in_the_redis_that_the_environment_names(
    tmp_path: Path,
    redis_server: Callable[..., RedisProcess],
    free_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = redis_server()
    monkeypatch.setenv("REDIS_URL", redis.url)
    monkeypatch.setenv("ORCHESTRATOR_TOKEN", "shared-token")
    fleet = LocalFleet(tmp_path / "data", port=free_port(), workers=2, environment=QUIET, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        assert client.submit(ECHO).wait(timeout_s=60).status == "completed"
        until(lambda: len(client.workers.list().items) == 2, "both workers")
        assert {worker.capabilities.link for worker in client.workers.list().items} == {"redis"}
        with redis.client as there:
            assert len(there.smembers("workers:ids")) == 2
        with Client(fleet.url, "shared-token") as other:
            assert other.info().authenticated


def test_one_shared_token_is_good_for_clients_and_workers_for_as_long_as_it_is_set(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    port, data, log = free_port(), tmp_path / "data", tmp_path / "server.log"
    command = [sys.executable, "-m", "tunefleet.api", "--data", str(data)]
    environment = {**os.environ, **QUIET, "HOST_APP_PORT": str(port), "LOG_FILE": str(log), "LOG_BACKUP_COUNT": "1"}
    url = f"http://127.0.0.1:{port}"
    for token, expected in (("shared-token", 200), ("", 401)):
        given = environment | {"ORCHESTRATOR_TOKEN": token, "HOST_APP_RELOAD": "1"}
        server = subprocess.Popen(command, env=given, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _answers(url), "the server's start")
            asked = httpx.get(f"{url}/api/v1/workers", headers={"Authorization": "Bearer shared-token"})
            assert asked.status_code == expected
            if token:
                _work(url, token, tmp_path / "results")
        finally:
            server.terminate()
            server.wait(60)
    assert "HOST_APP_RELOAD is not supported" in log.read_text()
    assert f"at {url}" in log.read_text()
    assert "shared-token" not in log.read_text()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/healthz").is_success
    except httpx.TransportError:
        return False


def _work(url: str, token: str, results: Path) -> None:
    environment = {**os.environ, **QUIET, "ORCHESTRATOR_BASE_URL": url, "RESULTS_DIR": str(results)}
    environment |= {"ORCHESTRATOR_TOKEN": token, "HEARTBEAT_INTERVAL_SEC": "0.2"}
    worker = subprocess.Popen([sys.executable, "-m", "tunefleet.worker"], env=environment, stderr=subprocess.DEVNULL)
    try:
        with Client(url, token) as client:
            assert client.submit(ECHO).wait(timeout_s=60).status == "completed"
            until(lambda: client.workers.list().items[0].load is not None, "a heartbeat over HTTP")
    finally:
        worker.terminate()
        worker.wait(60)
