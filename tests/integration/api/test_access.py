"""Who may call what: keys, roles, attempts, browsers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit

ROUTES_OF_MEMBERS = [("POST", "/workflows"), ("POST", "/tasks/task-0/cancel"), ("DELETE", "/artifacts/art-0")]
ROUTES_OF_ADMINS = [("GET", "/keys"), ("POST", "/keys"), ("POST", "/prune"), ("DELETE", "/workers/w")]
ROUTES_OF_READERS = [("GET", "/tasks"), ("GET", "/workflows"), ("GET", "/events"), ("GET", "/workers")]


def test_no_key_is_refused_with_the_way_out(running: Running) -> None:
    with running.client() as client:
        reply = client.get("/tasks")
    assert is_problem(reply, 401, "unauthenticated")["hint"]
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["tf_" + "x" * 40, "nonsense", "att-0123456789ab." + "0" * 32, "é"])
def test_wrong_key_is_refused(running: Running, key: str) -> None:
    with running.client() as client:
        is_problem(client.get("/tasks", headers={"X-API-Key": key.encode()}), 401, "unauthenticated")


def test_key_is_taken_as_bearer_and_as_header(running: Running) -> None:
    with running.client() as client:
        assert client.get("/tasks", headers={"X-API-Key": running.admin_key}).status_code == 200
        assert client.get("/tasks", headers={"Authorization": f"bearer {running.admin_key}"}).status_code == 200


def test_revoked_key_stops_to_work_at_once(admin: httpx.Client, running: Running) -> None:
    made = admin.post("/keys", json={"name": "short-lived"}).json()
    with running.client(made["secret"]) as client:
        assert client.get("/tasks").status_code == 200
        assert admin.delete(f"/keys/{made['id']}").status_code == 204
        is_problem(client.get("/tasks"), 401, "unauthenticated")


@pytest.mark.parametrize("path", ["/live", "/events/stream"])
def test_a_revoked_key_ends_its_open_streams_though_they_have_nothing_to_say(
    admin: httpx.Client, running: Running, path: str
) -> None:
    made = admin.post("/keys", json={"name": "short-lived"}).json()
    with running.client(made["secret"]) as client, client.stream("GET", path) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        if path == "/live":
            next(lines)
        assert admin.delete(f"/keys/{made['id']}").status_code == 204
        begun = time.monotonic()
        for _ in lines:
            pass
        assert time.monotonic() - begun < 10, "it would have ended with its next message"


@pytest.mark.parametrize(
    ("role", "routes", "allowed"),
    [
        ("member", ROUTES_OF_MEMBERS, True),
        ("member", ROUTES_OF_READERS, True),
        ("member", ROUTES_OF_ADMINS, False),
        ("viewer", ROUTES_OF_READERS, True),
        ("viewer", ROUTES_OF_MEMBERS, False),
        ("viewer", ROUTES_OF_ADMINS, False),
        ("worker", ROUTES_OF_READERS, False),
        ("worker", ROUTES_OF_MEMBERS, False),
        ("viewer", [("POST", "/link/exchange")], False),
        ("member", [("POST", "/link/register")], False),
        ("member", [("POST", "/tasks/task-0/journal"), ("PUT", "/tasks/task-0/log?offset=0")], False),
    ],
)
def test_roles(as_role: Callable[[str], httpx.Client], role: str, routes: list[tuple[str, str]], allowed: bool) -> None:
    client = as_role(role)
    for method, path in routes:
        reply = client.request(method, path)
        if allowed:
            assert reply.status_code not in {401, 403, 500}, (method, path, reply.text)
        else:
            is_problem(reply, 403, "forbidden")


def test_member_may_not_touch_the_task_of_another(admin: httpx.Client, as_role: Callable[[str], httpx.Client]) -> None:
    task_id = submit(admin)
    member = as_role("member")
    assert member.get(f"/tasks/{task_id}").status_code == 200
    is_problem(member.post(f"/tasks/{task_id}/cancel"), 403, "forbidden")


def test_attempt_token_reaches_one_task_only(admin: httpx.Client, hand: HandWorker, running: Running) -> None:
    mine, other = submit(admin), submit(admin)
    token = hand.take(mine)
    batch = {"launch": "l1", "from_seq": 0, "lines": ['{"seq":0,"at":1.0,"type":"launch","launch":"l1"}']}
    with running.client(token) as attempt:
        assert attempt.post(f"/tasks/{mine}/journal", json=batch).json() == {"cursor": 1}
        assert attempt.put(f"/tasks/{mine}/log?offset=0", content=b"hello\n").json() == {"cursor": 6}
        is_problem(attempt.post(f"/tasks/{other}/journal", json=batch), 403, "forbidden")
        is_problem(attempt.put(f"/tasks/{other}/log?offset=0", content=b"x"), 403, "forbidden")
        for method, path in [("GET", f"/tasks/{mine}"), ("GET", "/tasks"), ("POST", "/workflows"), ("GET", "/keys")]:
            is_problem(attempt.request(method, path), 403, "forbidden")
        is_problem(attempt.post("/link/exchange", json={}), 403, "forbidden")
    tampered = token[:-1] + ("0" if token[-1] != "0" else "1")
    with running.client(tampered) as forged:
        is_problem(forged.post(f"/tasks/{mine}/journal", json=batch), 401, "unauthenticated")


@pytest.fixture
def browser(running: Running, admin: httpx.Client) -> Any:
    with httpx.Client(base_url=running.url) as client:
        code = admin.post("/login-codes").json()["code"]
        assert client.post("/api/v1/session", json={"code": code}, headers={"Origin": running.url}).status_code == 201
        yield client


def test_typed_key_opens_a_session(running: Running) -> None:
    with httpx.Client(base_url=running.url, headers={"Origin": running.url}) as client:
        assert client.post("/login", data={"key": "tf_wrong"}).status_code == 401
        assert client.post("/login", data={"key": running.admin_key}).status_code == 200
        assert client.get("/api/v1/tasks").status_code == 200
    with httpx.Client(base_url=running.url, headers={"Origin": "http://evil.example"}) as client:
        is_problem(client.post("/login", data={"key": running.admin_key}), 403, "forbidden")


def test_session_reads_and_writes_from_its_own_page(browser: httpx.Client, running: Running) -> None:
    assert browser.get("/api/v1/tasks").status_code == 200
    own = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
    assert browser.post("/api/v1/login-codes", headers=own).status_code == 201
    assert browser.post("/api/v1/login-codes", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_session_is_no_use_to_another_site(browser: httpx.Client, headers: dict[str, str]) -> None:
    is_problem(browser.post("/api/v1/login-codes", headers=headers), 403, "forbidden")


def test_documents_are_offline_and_need_a_session(browser: httpx.Client, running: Running) -> None:
    page = browser.get("/docs")
    assert page.status_code == 200
    assert "https://" not in page.text
    assert "http://" not in page.text
    for path in ["/docs/start.js", "/docs/assets/swagger-ui.css", "/docs/assets/swagger-ui-bundle.js"]:
        assert path in page.text or path.endswith("bundle.js")
        assert browser.get(path).status_code == 200
    # Made when first asked for: seconds on a busy machine.
    assert browser.get("/api/v1/openapi.json", timeout=60).json()["openapi"].startswith("3.")
    with httpx.Client(base_url=running.url) as stranger:
        assert stranger.get("/docs").headers["location"] == "/login"
        assert stranger.get("/").headers["location"] == "/ui/"
        is_problem(stranger.get("/api/v1/openapi.json"), 401, "unauthenticated")
        assert "API key" in stranger.get("/login").text


def test_info_says_who_asks(running: Running) -> None:
    with running.client() as anybody, running.client(running.admin_key) as admin:
        assert anybody.get("/info").json()["authenticated"] is False
        assert admin.get("/info").json()["role"] == "admin"
        assert anybody.get("/healthz").json() == {"status": "ok", "role": "alone"}
        assert "properties" in anybody.get("/schema").text


def test_other_origins_are_not_allowed_by_default(running: Running) -> None:
    with running.client(running.admin_key, headers={"Origin": "http://evil.example"}) as client:
        reply = client.get("/tasks")
        assert "access-control-allow-origin" not in reply.headers
        preflight = client.options("/tasks", headers={"Access-Control-Request-Method": "POST"})
        assert "access-control-allow-origin" not in preflight.headers
