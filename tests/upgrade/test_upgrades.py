"""Data folders that older versions have left: this version serves all that is in them, and goes on with it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.libraries import required
from tests.packaging.making import run
from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client
from tunefleet.store import migrate
from tunefleet.store.opening import standing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
COMMAND = ["-c", "from tunefleet.cli.main import main; main()"]
HERE = Path(__file__).resolve().parent
FROZEN = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
PLACES = [
    pytest.param((FROZEN[0], False), id=f"{FROZEN[0]}-sqlite"),
    *(pytest.param((name, False), id=f"{name}-sqlite", marks=pytest.mark.long) for name in FROZEN[1:]),
    *(pytest.param((name, True), id=f"{name}-postgres", marks=pytest.mark.long) for name in FROZEN),
]
# Of what was said of a task then; what else is said of it now has come since.
LASTING = {
    "id", "workflow_id", "name", "kind", "status", "reason", "error", "owner", "priority", "attempts", "worker_id",
    "parent_task_id", "created_at", "finished_at", "spec", "result",
}  # fmt: skip
PATIENCE_S = 300.0
ECHO = """
apiVersion: tunefleet/v1
metadata: {name: new}
spec: {taskType: echo, data: {type: list, items: [new]}}
"""
TRAINING = """
apiVersion: tunefleet/v1
metadata: {name: onward}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {artifact: rows, prompt_column: question, response_column: answer}
  lora: {r: 1, alpha: 2, target_modules: [q_proj]}
  training: {max_steps: 1, batch_size: 1, max_seq_length: 64}
"""


class Upgraded:
    """A fleet of this version on a folder of an older one, and what that one said of it.

    Args:
        fleet: The fleet, started.
        told: What the older version said.
    """

    def __init__(self, fleet: LocalFleet, told: dict[str, Any]) -> None:
        self.fleet, self.told = fleet, told

    def get(self, path: str, key: str | None = None, **parameters: str) -> httpx.Response:
        """Ask as the administrator of then, or with another key."""
        headers = {"Authorization": f"Bearer {key or self.told['admin']}"}
        return httpx.get(f"{self.fleet.url}/api/v1{path}", headers=headers, params=parameters, timeout=60)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """All that was said of each task that was final."""
        return (told for told in self.told["tasks"] if told["task"]["id"] != self.told["waiting"])


def unfrozen(name: str, into: Path) -> dict[str, Any]:
    """Lay a frozen data folder somewhere; return what was said of it."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    told: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return told


def tunefleet(*words: str | Path, **environment: str) -> str:
    """Run a command of this version; return what it printed."""
    return run(sys.executable, *COMMAND, *words, PYTHONPATH=str(HERE.parents[1] / "src"), **environment)


def dumped(data: Path) -> list[str]:
    """All that a folder's database has, as SQL."""
    with closing(sqlite3.connect(data / "tunefleet.db")) as connection:
        return list(connection.iterdump())


@pytest.fixture(scope="module", params=PLACES)
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Upgraded]:
    """A fleet of this version on each folder, and on a PostgreSQL that was filled from each."""
    name, in_postgres = request.param
    data = tmp_path_factory.mktemp("data")
    told = unfrozen(name, data)
    environment = {"TUNEFLEET_WARM_START": "false", "LOG_FILE": "", "WORKER_TAGS": "later", "OMP_NUM_THREADS": "1"}
    if in_postgres:
        server = request.getfixturevalue("postgres")
        environment["TUNEFLEET_DATABASE_URL"] = url = server.create()
        made = json.loads(tunefleet("backup", data / "moved.zip", "--data", data, "--json"))
        assert made["engine"].startswith("SQLite")
        tunefleet("restore", data / "moved.zip", "--data", data, TUNEFLEET_DATABASE_URL=url)
        (data / "tunefleet.db").unlink()
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet:
        yield Upgraded(fleet, told)
    if in_postgres:
        server.drop(url)


def test_the_tables_are_of_this_version(upgraded: Upgraded) -> None:
    database = upgraded.fleet.data / "tunefleet.db"
    if not database.exists():
        pytest.skip("the tables are in PostgreSQL; the restore has made them")
    assert standing(database).revision == migrate.HEAD


def test_each_task_of_then_is_served_as_it_was(upgraded: Upgraded) -> None:
    for told in upgraded.tasks():
        now = upgraded.get(f"/tasks/{told['task']['id']}").json()
        assert {name: now[name] for name in LASTING} == {name: told["task"][name] for name in LASTING}
    kept = upgraded.get("/workflows").json()["items"]
    assert {each["id"] for each in kept} >= {each["id"] for each in upgraded.told["workflows"]}


def test_each_point_and_each_line_of_then_is_served(upgraded: Upgraded) -> None:
    points = 0
    for told in upgraded.tasks():
        path = f"/tasks/{told['task']['id']}"
        assert upgraded.get(f"{path}/metrics").json()["points"] == told["metrics"]["points"]
        assert hashlib.sha256(upgraded.get(f"{path}/log").content).hexdigest() == told["log_sha256"]
        points += len(told["metrics"]["points"])
    assert points >= 3


def test_each_file_of_then_is_served(upgraded: Upgraded) -> None:
    files = 0
    for told in upgraded.tasks():
        found = upgraded.get(f"/tasks/{told['task']['id']}/artifacts").json()["items"]
        assert {each["name"] for each in found} == set(told["artifacts"])
        for each in found:
            for path, digest in told["artifacts"][each["name"]].items():
                content = upgraded.get(f"/artifacts/{each['id']}/files/{path}").content
                assert hashlib.sha256(content).hexdigest() == digest
                files += 1
    assert files >= 5
    assert {each["name"] for each in upgraded.told["artifacts"]} == {"final_lora", "rows", "rows.jsonl"}


def test_each_key_of_then_is_what_it_was(upgraded: Upgraded) -> None:
    for role in ("member", "viewer"):
        who = upgraded.get("/info", upgraded.told["keys"][role]).json()
        assert (who["authenticated"], who["role"], who["project"]) == (True, role, "default")
    assert upgraded.get("/tasks", upgraded.told["keys"]["revoked"]).status_code == 401
    if "project" in upgraded.told:
        assert upgraded.get("/info", upgraded.told["project_key"]).json()["project"] == "lab"
        assert upgraded.get("/projects/lab").json() == upgraded.told["project"]


def test_what_waited_then_runs_now_and_so_does_what_is_new(upgraded: Upgraded) -> None:
    answered = next(told["task"] for told in upgraded.tasks() if told["task"]["name"] == "answered")
    assert answered["result"]["result"]["items"]
    with Client(upgraded.fleet.url, upgraded.told["admin"]) as client:
        assert client.tasks.wait(upgraded.told["waiting"], timeout_s=PATIENCE_S).status == "completed"
        again = client.tasks.wait(client.tasks.retry(answered["id"]).id, timeout_s=PATIENCE_S)
        assert again.status == "completed"
        assert [item["output"] for item in again.result["result"]["items"]] == answered["spec"]["data"]["items"]
        new = client.submit(ECHO).wait(timeout_s=PATIENCE_S)
        assert new.status == "completed"


@pytest.mark.long
def test_a_training_of_now_takes_rows_of_then(upgraded: Upgraded) -> None:
    required("trl")
    with Client(upgraded.fleet.url, upgraded.told["keys"]["member"]) as client:
        done = client.submit(TRAINING).wait(timeout_s=PATIENCE_S)
        assert done.status == "completed"


@pytest.mark.long
@pytest.mark.parametrize("command", [["-m", "tunefleet.server"], [*COMMAND, "db", "check"]])
def test_an_older_version_refuses_what_a_newer_one_has_changed(tmp_path: Path, command: list[str]) -> None:
    unfrozen(FROZEN[-1], tmp_path)
    with closing(sqlite3.connect(tmp_path / "tunefleet.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = dumped(tmp_path)
    words = [sys.executable, *command, "--data", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "was made by a newer version of Tunefleet (revision 9999" in done.stderr
    assert "Upgrade Tunefleet, or use another data folder" in done.stderr
    assert dumped(tmp_path) == before
