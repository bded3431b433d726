"""A data folder that an older version has left: the next one serves all that is in it, and goes on with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.fakes import revisions
from tests.integration.api.support import ECHO, HandWorker, Running, submit
from tests.integration.api.test_files import digest_of, publish, put
from tunefleet.db import backup
from tunefleet.db.engine import migrate, offline, sqlite

TRAINING = """apiVersion: tunefleet/v1
metadata: {name: trained}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {artifact: rows, prompt_column: question, response_column: answer}
"""
ROWS = b'{"question": "What is 1 and 1?", "answer": "2"}\n'
PHONE = {"name": "phone", "to": "https://example.org/hook", "on": ["budget"]}
WEIGHTS = bytes(range(256)) * 300


def point(seq: int) -> str:
    return json.dumps({"seq": seq, "at": 1.0, "type": "metric", "step": seq, "values": {"loss": 1 / seq}})


BEGUN = [json.dumps({"seq": 0, "at": 1.0, "type": "launch", "launch": "l1", "from_step": 0}), point(1), point(2)]


def report(running: Running, token: str, task_id: str, lines: list[str], from_seq: int = 0) -> None:
    """Report lines of a journal, as the job of an attempt does."""
    with running.client(token) as attempt:
        body = {"launch": "l1", "from_seq": from_seq, "lines": lines}
        reply = attempt.post(f"/tasks/{task_id}/journal", json=body)
        assert reply.json() == {"cursor": from_seq + len(lines)}, reply.text


def told(client: httpx.Client, task_id: str) -> dict[str, Any]:
    """Return all that a server says of a task: itself, its points, its log, its artifacts with their files' digests."""
    path = f"/tasks/{task_id}"
    files = {}
    for artifact in client.get(f"{path}/artifacts").json()["items"]:
        names = [file["path"] for file in client.get(f"/artifacts/{artifact['id']}").json()["files"]]
        got = {name: client.get(f"/artifacts/{artifact['id']}/files/{name}").content for name in names}
        files[artifact["name"]] = {name: digest_of(content) for name, content in got.items()}
    said = {"task": client.get(path).json(), "points": client.get(f"{path}/metrics").json()["points"]}
    return said | {"log": client.get(f"{path}/log").json()["text"], "files": files}


@dataclass
class Left:
    """What a server of the older version was used for, and what it said of that."""

    keys: dict[str, str]
    ended: dict[str, dict[str, Any]]
    """What was said of each task that is final."""
    lists: dict[str, Any]
    waiting: str
    running: str
    token: str
    """Of the running task's attempt."""


LISTS = ["/workflows", "/artifacts", "/projects/lab", "/notifications/channels"]


def keys_of(admin: httpx.Client) -> dict[str, str]:
    """Make keys of some roles, one of another project and one that is revoked."""
    assert admin.post("/projects", json={"name": "lab", "weight": 2.0, "max_running": 3}).is_success
    wanted = {"member": {}, "viewer": {}, "lab": {"role": "member", "project": "lab"}, "revoked": {"role": "member"}}
    made = {name: admin.post("/keys", json={"name": name, "role": name} | more).json() for name, more in wanted.items()}
    assert admin.delete(f"/keys/{made['revoked']['id']}").is_success
    return {name: key["secret"] for name, key in made.items()}


def use(running: Running) -> Left:
    """Do a little of everything with a server."""
    with running.client(running.admin_key) as admin, running.client(running.worker_key) as link:
        keys = keys_of(admin)
        assert admin.post("/notifications/channels", json=PHONE).is_success
        assert put(admin, ROWS).is_success
        assert publish(admin, "rows", {"rows.jsonl": ROWS}).status_code == 201
        trainer, echo = HandWorker(link, "trainer", kind="lora_sft", slot_class="job"), HandWorker(link, "echo")
        trainer.register()
        echo.register()
        ended = [trained := submit(admin, TRAINING), answered := submit(admin), unwanted := submit(admin)]
        token = trainer.take(trained)
        report(running, token, trained, [*BEGUN, point(3)])
        with running.client(token) as attempt:
            assert attempt.put(f"/tasks/{trained}/log?offset=0", content="a line\nGrüße\n".encode()).is_success
            assert put(attempt, WEIGHTS).is_success
            assert publish(attempt, "final_lora", {"a.bin": WEIGHTS, "b/c.bin": WEIGHTS}, task_id=trained).is_success
        trainer.finish(token)
        assert admin.post(f"/tasks/{unwanted}/cancel").is_success
        echo.finish(echo.take(answered))
        under_way, waiting = submit(admin, TRAINING), submit(admin)
        token = trainer.take(under_way)
        report(running, token, under_way, BEGUN)
        said = {task_id: told(admin, task_id) for task_id in ended}
        assert [each["task"]["status"] for each in said.values()] == ["completed", "completed", "cancelled"]
        return Left(keys, said, {path: admin.get(path).json() for path in LISTS}, waiting, under_way, token)


@dataclass
class Upgraded:
    """The server of the next version on a data folder that was used."""

    server: Running
    left: Left

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        """Ask as the administrator, or with another key."""
        with self.server.client(key or self.server.admin_key) as client:
            return client.get(path)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def upgraded(
    request: pytest.FixtureRequest, start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    """The next version, on the database as it is and on a PostgreSQL that was filled from a backup of it."""
    data = tmp_path_factory.mktemp("upgraded")
    older = start(data)
    left = use(older)
    older.stop()
    older.core.close()
    database, settings = data / "tunefleet.db", {}
    with pytest.MonkeyPatch.context() as patch:
        before, after = migrate.HEAD, revisions.install(patch, tmp_path_factory.mktemp("next") / "migrations")
        if in_postgres := request.param == "postgres":
            process = request.getfixturevalue("postgres")
            settings["database_url"] = url = process.create()
            assert backup.write(database, data / "moved.zip").revision == before
            backup.restore(data / "moved.zip", url, data)
            database.unlink()
        server = start(data, **settings)
        assert offline.status_of(url if in_postgres else database).revision == after
        assert [copy.name for copy in sqlite.of(database)] == (
            [] if in_postgres else [f"tunefleet.db.revision-{before}"]
        )
        yield Upgraded(server, left)
        server.stop()
        server.core.close()
        if in_postgres:
            process.drop(url)


def test_all_that_was_said_of_tasks_their_points_logs_and_files_is_said_again(upgraded: Upgraded) -> None:
    with upgraded.server.client(upgraded.server.admin_key) as admin:
        for task_id, said in upgraded.left.ended.items():
            assert told(admin, task_id) == said
        assert {path: admin.get(path).json() for path in LISTS} == upgraded.left.lists
    trained = next(iter(upgraded.left.ended.values()))
    assert len(trained["points"]) == 3
    assert trained["log"] == "a line\nGrüße\n"
    digest = digest_of(WEIGHTS)
    assert trained["files"] == {"final_lora": {"a.bin": digest, "b/c.bin": digest}}


def test_each_key_is_what_it_was(upgraded: Upgraded) -> None:
    for role in ("member", "viewer"):
        who = upgraded.get("/info", upgraded.left.keys[role]).json()
        assert (who["authenticated"], who["role"], who["project"]) == (True, role, "default")
    assert upgraded.get("/info", upgraded.left.keys["lab"]).json()["project"] == "lab"
    assert upgraded.get("/tasks", upgraded.left.keys["revoked"]).status_code == 401


def test_what_ran_goes_on_what_waited_runs_and_so_does_what_is_new(upgraded: Upgraded) -> None:
    server, left = upgraded.server, upgraded.left
    with server.client(server.admin_key) as admin, server.client(server.worker_key) as link:
        trainer = HandWorker(link, "trainer", kind="lora_sft", slot_class="job", holding=[left.token])
        trainer.register()
        report(server, left.token, left.running, [point(3)], from_seq=3)
        trainer.finish(left.token)
        gone_on = told(admin, left.running)
        assert (gone_on["task"]["status"], gone_on["task"]["attempts"], len(gone_on["points"])) == ("completed", 1, 3)
        echo = HandWorker(link, "echo")
        echo.register()
        answered = list(left.ended)[1]
        again = admin.post(f"/tasks/{answered}/retry")
        assert again.is_success, again.text
        for task_id in (left.waiting, again.json()["id"], submit(admin, ECHO)):
            echo.finish(echo.take(task_id))
            assert admin.get(f"/tasks/{task_id}").json()["status"] == "completed"
        # A new training is given the rows that were uploaded before.
        with server.client(trainer.take(submit(admin, TRAINING))) as attempt:
            assert attempt.get(f"/blobs/{digest_of(ROWS)}").content == ROWS
