"""A whole fleet whose server keeps the truth in PostgreSQL: it survives the death of either."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.api.support import until
from tests.integration.postgres.process import PostgresProcess
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

CHAIN = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: chain}
spec:
  stages:
    - name: first
      spec: {taskType: echo, data: {type: list, items: [a, b]}}
    - name: second
      dependsOn: [first]
      spec: {taskType: echo, data: {type: list, items: [c]}}
"""


def ends(client: Client) -> str:
    return client.workflows.wait(client.submit(CHAIN).workflow.id, timeout_s=60).status


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.story
def test_a_chain_runs_and_a_killed_server_goes_on(
    tmp_path: Path, free_port: Callable[[], int], postgres: PostgresProcess
) -> None:
    url = postgres.create()
    environment = {"TUNEFLEET_WARM_START": "false", "TUNEFLEET_DATABASE_URL": url}
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=environment, save_client=False)
    with fleet, Client(fleet.url, fleet.key, patience_s=60) as client:
        fleet.await_workers(60)
        assert ends(client) == "completed"
        before = fleet.pid("server")
        assert before is not None
        os.kill(before, signal.SIGKILL)
        until(lambda: fleet.pid("server") not in {before, None})
        assert ends(client) == "completed"
        assert postgres.end_connections(url) > 0
        assert ends(client) == "completed"
        assert [each.status for each in client.workflows.list().items] == ["completed"] * 3
    assert not (tmp_path / "data" / "tunefleet.db").exists()
    with postgres.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM tasks WHERE status = 'completed'").fetchone()
    assert row == (6,)
