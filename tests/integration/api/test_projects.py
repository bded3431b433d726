"""Projects over HTTP: they compete for one worker, their quotas hold, what they use is counted, and the log tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import ECHO, HandWorker, Running, is_problem, submit, until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.cli.main import run
from tunefleet.client import Client
from tunefleet.db.access import audit


@pytest.fixture(scope="module")
def running(start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("projects"), lost_after_s=600)
    yield running
    running.stop()
    running.core.close()


@pytest.fixture
def member(running: Running, admin: httpx.Client) -> Iterator[Callable[..., httpx.Client]]:
    """Make a project unless it is there, and a client with a key of it."""
    with ExitStack() as stack:

        def make(project: str, role: str = "member", **quotas: Any) -> httpx.Client:
            if admin.get(f"/projects/{project}").status_code == 404:
                made = admin.post("/projects", json={"name": project, **quotas})
                assert made.status_code == 201, made.text
            body = {"name": f"{project}-{role}", "role": role, "project": project}
            key = admin.post("/keys", json=body)
            assert key.status_code == 201, key.text
            return stack.enter_context(running.client(key.json()["secret"]))

        yield make


def test_two_projects_share_a_worker_within_their_quotas(
    running: Running, admin: httpx.Client, worker: httpx.Client, member: Callable[..., httpx.Client]
) -> None:
    red, blue = member("red", max_running=2), member("blue")
    hand = HandWorker(worker, "shared", slots=4)
    hand.register()
    reds = [submit(red) for _ in range(6)]
    blues = [submit(blue) for _ in range(6)]
    offers: dict[str, str] = {}

    def offered() -> bool:
        got = hand.exchange(wait_s=0.5, want={"light": 4})["offers"]
        offers.update({each["task_id"]: each["token"] for each in got})
        return len(offers) == 4

    until(offered)
    assert sum(id_ in offers for id_ in reds) == 2
    assert sum(id_ in offers for id_ in blues) == 2
    held = next(id_ for id_ in reds if id_ not in offers)
    why = red.get(f"/tasks/{held}/why").json()["why"]
    assert "2 runs of project red are active, and its quota is 2" in why
    assert "tunefleet projects set red --max-running" in why
    is_problem(blue.get(f"/tasks/{held}"), 404, "not_found")
    hand.holding += list(offers.values())
    assert set(hand.exchange(accepts=list(offers.values()))["accepted"]) == set(offers.values())
    assert blue.get("/workers/shared").json()["running"] == [id_ for id_ in blues if id_ in offers]
    for token in list(offers.values()):
        hand.finish(token)
    used = {row["key"]: row for row in admin.get("/usage", params={"by": "project"}).json()["rows"]}
    assert (used["red"]["attempts"], used["blue"]["attempts"]) == (2, 2)
    assert used["red"]["cost"] >= 0
    assert [row["key"] for row in red.get("/usage").json()["rows"]] == ["red"]
    entries = admin.get("/audit", params={"route": "/workflows", "actor": "red-member"}).json()["items"]
    assert [entry["status"] for entry in entries] == [201] * 6
    assert {(entry["project"], entry["address"]) for entry in entries} == {("red", "127.0.0.1")}


def test_every_write_is_in_the_log_before_it_is_answered_and_no_secret_is(
    running: Running, admin: httpx.Client, worker: httpx.Client, member: Callable[..., httpx.Client]
) -> None:
    plain, viewer = member("green"), member("green", role="viewer")
    made = admin.post("/keys", json={"name": "s3cret-free", "project": "green"}, headers={"X-Request-ID": "mine-1"})
    assert made.headers["x-request-id"] == "mine-1"
    assert admin.delete(f"/keys/{made.json()['id']}").status_code == 204
    assert viewer.post("/workflows", json={"document": ECHO}).status_code == 403
    assert plain.post("/workflows", json={"document": "nonsense: ["}).status_code == 422
    assert plain.get("/tasks").status_code == 200
    with running.client("tf_" + "x" * 40) as nobody:
        assert nobody.post("/workflows", json={"document": ECHO}).status_code == 401
        page = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
        assert nobody.post("/session", json={"key": "tf_wrong"}, headers=page).status_code == 401
    hand = HandWorker(worker, "logged")
    hand.register()
    hand.exchange()
    found = admin.get("/audit", params={"limit": 8}).json()["items"]
    told = [(each["actor"], each["method"], each["route"], each["status"]) for each in found]
    assert told[:6] == [
        ("worker", "POST", "/api/v1/link/register", 200),
        (None, "POST", "/api/v1/session", 401),
        ("green-member", "POST", "/api/v1/workflows", 422),
        ("green-viewer", "POST", "/api/v1/workflows", 403),
        ("admin", "DELETE", "/api/v1/keys/{key_id}", 204),
        ("admin", "POST", "/api/v1/keys", 201),
    ]
    assert found[4]["target"] == f"key_id={made.json()['id']}"
    assert found[5]["request_id"] == "mine-1"
    secrets = (made.json()["secret"], "tf_wrong", running.admin_key, ECHO)
    # A machine that joins is nobody yet, and its try is there too.
    assert plain.post("/join", json={"token": "tfj_none", "secret_hash": "0" * 64, "name": "box"}).is_error
    joined = admin.get("/audit", params={"route": "/join"}).json()["items"]
    assert [(each["actor"], each["address"] != "") for each in joined] == [(None, True)]
    stored = str(running.core.db.read(lambda connection: audit.page(
        connection, project=None, actor=None, route=None, since=None, before=None, limit=1000
    )).result())  # fmt: skip
    assert not [secret for secret in secrets if secret in stored]
    assert is_problem(plain.get("/audit"), 403, "forbidden")


def test_the_command_line_shows_projects_use_and_log(
    running: Running, member: Callable[..., httpx.Client], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("TUNEFLEET_URL", running.url)
    monkeypatch.setenv("TUNEFLEET_KEY", running.admin_key)

    def told(*args: str) -> str:
        code = run(args)
        out: str = capsys.readouterr().out
        assert code == 0, (args, out)
        return out

    assert "weight 2" in told("projects", "create", "cli", "--weight", "2", "--gpu-hours", "5", "--storage", "1GB")
    assert (
        json.loads(told("projects", "set", "cli", "--max-running", "3", "--storage", "none", "--json"))["storage_bytes"]
        is None
    )
    assert "archived" in told("projects", "archive", "cli", "--yes")
    assert "0 of 3" in told("projects", "restore", "cli") + told("projects", "ls")
    assert "project cli" in told("keys", "create", "cli-key", "--project", "cli")
    submit(member("cli"))
    assert json.loads(told("usage", "--since", "7d", "--by", "kind", "--json"))["by"] == "kind"
    assert told("usage", "--csv", "--since", "2026-01-01").splitlines()[0] == (
        "project,attempts,wall_s,cpu_s,gpu_s,energy_wh,cost"
    )
    assert "/api/v1/projects" in told("audit", "--actor", "admin", "--since", "1h")
    assert run(("usage", "--since", "soon")) != 0
    assert "is not a time" in capsys.readouterr().err


@pytest.mark.proof
def test_a_worker_of_its_own_process_runs_for_two_projects(tmp_path: Path, free_port: Callable[[], int]) -> None:
    quiet = {"TUNEFLEET_WARM_START": "false", "LOG_FILE": "", "WORKER_COST_PER_HOUR": "3600"}
    with LocalFleet(tmp_path, port=free_port(), environment=quiet, save_client=False) as fleet:
        fleet.await_workers(60)
        with Client(fleet.url, (tmp_path / "keys" / "admin.key").read_text().strip()) as boss:
            for name in ("left", "right"):
                boss.projects.create(name, max_running=2)
            keys = {name: boss.keys.create(name, project=name).secret for name in ("left", "right")}
            for name, key in keys.items():
                with Client(fleet.url, key) as own:
                    runs = [own.submit(ECHO) for _ in range(4)]
                    assert [each.wait(timeout_s=120).status for each in runs] == ["completed"] * 4
                    assert [row.key for row in own.usage().rows] == [name]
            rows = {row.key: row for row in boss.usage().rows}
            assert {name: rows[name].attempts for name in keys} == {"left": 4, "right": 4}
            assert all(rows[name].cost is not None for name in keys)
            submitted = boss.audit(route="/workflows").items
            assert sorted(each.project or "" for each in submitted) == ["left"] * 4 + ["right"] * 4
