"""Servers are upgraded one after the other while a worker runs a task; real processes on one PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import revisions
from tests.integration.server.support import until
from tests.integration.servers.trio import LONG, QUICK, Trio, named, submit


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_task_goes_on_while_its_servers_are_upgraded(trio: Trio, tmp_path: Path) -> None:
    trio.settings["TUNEFLEET_LOST_AFTER_S"] = "300"  # a busy machine may take long to start a server
    trio.start(0)
    trio.work(0)
    with trio.client(0) as client:
        flow = submit(client, named(LONG, "long", tmp_path))
    until((tmp_path / "began").exists)
    trio.start(1, module=revisions.__name__)
    assert trio.rows("SELECT version_num FROM alembic_version") == [(revisions.NEXT,)]
    with trio.client(0) as client:  # the server of the version before goes on until it is its turn
        submit(client, named(QUICK, "by-the-old-one"))
    trio.stop(0)
    trio.start(0, module=revisions.__name__)
    (tmp_path / "end").touch()
    with trio.client(1) as client:
        submit(client, named(QUICK, "by-the-new-one"))
        until(lambda: client.get(f"/workflows/{flow}").json()["status"] == "completed")
    until(lambda: trio.rows("SELECT count(*) FROM tasks WHERE status <> 'completed'") == [(0,)])
    assert (trio.ran(), trio.rows("SELECT count(*) FROM tasks")) == (3, [(3,)])
