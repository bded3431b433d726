"""Restart every server, one after the other, while others submit: what was acknowledged is there, once."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import httpx
import pytest

from tests.fakes import revisions
from tests.integration.api.support import until
from tests.integration.servers.trio import LONG, QUICK, Trio, named, submit
from tunefleet.artifacts import FolderStore
from tunefleet.db import Database
from tunefleet.db.fleet import servers as server_rows
from tunefleet.db.fleet.servers import ServerRow
from tunefleet.errors import StoreError
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.ha import storage_marker
from tunefleet.settings import ServerSettings


class Submitter(threading.Thread):
    """Submits one document after the other, each until some server has acknowledged it."""

    def __init__(self, trio: Trio, count: int) -> None:
        super().__init__(daemon=True)
        self.count = count
        self.trio, self.acknowledged, self.over = trio, list[tuple[str, str]](), threading.Event()

    def run(self) -> None:
        key = self.trio.key()
        turn = 0
        while not self.over.is_set():
            name = f"flow-{len(self.acknowledged)}"
            headers = {"Content-Type": "application/yaml", "Idempotency-Key": name, "Authorization": f"Bearer {key}"}
            while not self.over.is_set():
                turn += 1
                try:
                    url = f"{self.trio.base(turn % self.count)}/api/v1/workflows"
                    reply = httpx.post(url, content=named(QUICK, name), headers=headers, timeout=10)
                except httpx.TransportError:
                    continue
                if reply.is_success:
                    self.acknowledged.append((name, reply.json()["id"]))
                    break


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.proof
@pytest.mark.parametrize("servers", [2, 3])
def test_a_rolling_restart_loses_nothing_that_was_acknowledged(trio: Trio, servers: int) -> None:
    trio.start(*range(servers))
    trio.work(0)
    load = Submitter(trio, servers)
    load.start()
    for number in range(servers):
        count = len(load.acknowledged)
        until(lambda count=count: len(load.acknowledged) > count + 5)
        trio.stop(number)
        trio.start(number)
    load.over.set()
    load.join(60)
    assert load.acknowledged
    names = dict(load.acknowledged)
    stored = trio.rows("SELECT name, id FROM workflows")
    assert len(stored) == len({name for name, _ in stored})
    assert names.items() <= dict(stored).items()
    until(lambda: trio.rows("SELECT count(*) FROM tasks WHERE status <> 'completed'") == [(0,)])
    assert trio.rows("SELECT count(*) FROM tasks") == [(trio.ran(),)]


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


@pytest.mark.proof
def test_a_copy_of_a_data_folder_does_not_serve_beside_it(trio: Trio) -> None:
    trio.start(0)
    (trio.folder / "data1").mkdir()
    (trio.folder / "data1" / "artifacts").symlink_to(trio.folder / "files", target_is_directory=True)
    shutil.copy(trio.folder / "data0" / "server.id", trio.folder / "data1")
    trio.begin(1)
    assert trio.processes[1].wait(60) == 1
    assert "Another server has the same id srv-" in trio.log(1)
    until(lambda: trio.leader() == 0)
    assert trio.answers(0)


def test_a_server_with_other_files_is_refused_while_others_serve(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(name: str) -> ServerSettings:
        return ServerSettings(data=tmp_path / name, database_url=postgres_url)

    open_context(settings("a")).close()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "artifacts").symlink_to(tmp_path / "a" / "artifacts", target_is_directory=True)
    open_context(settings("b")).close()
    database = Database.open(postgres_url)
    row = ServerRow("srv-a", "p", "host", None, "0", 0.0)
    database.write(lambda connection: server_rows.appear(connection, row)).result()

    def lives(_: float) -> None:
        database.write(lambda connection: server_rows.be_here(connection, row)).result()

    monkeypatch.setattr(storage_marker.time, "sleep", lives)
    with pytest.raises(StoreError, match="use a file store other than"):
        open_context(settings("c"))
    # Nobody lives: the files were moved, and whoever says so has their new place marked.
    monkeypatch.setattr(storage_marker.time, "sleep", lambda _: None)
    with pytest.raises(StoreError, match="--adopt-files"):
        open_context(settings("c"))
    core = open_context(settings("c"), adopt_files=True)
    digest = core.db.read(storage_marker.digest_of).result()
    assert digest is not None
    assert FolderStore(tmp_path / "c" / "artifacts").has(digest)
    core.close()
    database.close()
