"""A browser's session: how it opens, what it survives, how it ends, and what cannot open or use one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import Running, is_problem
from tunefleet.api.auth import cookie_name
from tunefleet.orchestrator.access.login_throttle import BURST
from tunefleet.settings import ServerSettings, load

OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def browser(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, headers={"Origin": running.url, **OWN}) as client:
        yield client


def _code(admin: httpx.Client) -> str:
    return str(admin.post("/login-codes").json()["code"])


def test_a_login_link_opens_one_session_and_no_address_has_its_code(
    running: Running, admin: httpx.Client, browser: httpx.Client
) -> None:
    link = admin.post("/login-codes").json()
    assert link["url"] == f"{running.url}/login#code={link['code']}"
    opened = browser.post("/api/v1/session", json={"code": link["code"]})
    assert opened.status_code == 201
    assert (opened.json()["role"], opened.json()["owner"]) == ("admin", "admin")
    cookie = opened.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "max-age=", "path=/"))
    assert "secure" not in cookie
    assert browser.get("/api/v1/info").json()["role"] == "admin"
    with httpx.Client(base_url=running.url, headers=OWN) as second:
        refused = second.post("/api/v1/session", json={"code": link["code"]})
        is_problem(refused, 401, "unauthenticated")
        assert "set-cookie" not in refused.headers


def test_the_page_of_a_login_link_redeems_it_by_a_script_of_its_own(browser: httpx.Client) -> None:
    page = browser.get("/login")
    assert '<script src="/login/start.js">' in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    script = browser.get("/login/start.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "location.hash" in script.text
    assert "/api/v1/session" in script.text


def test_a_code_in_a_query_opens_nothing(running: Running, admin: httpx.Client, browser: httpx.Client) -> None:
    code = _code(admin)
    page = browser.get("/login", params={"code": code})
    assert "set-cookie" not in page.headers
    assert browser.post("/api/v1/session", json={"code": code}).status_code == 201


def test_a_session_has_the_role_of_its_key(
    admin: httpx.Client, browser: httpx.Client, as_role: Callable[[str], httpx.Client]
) -> None:
    viewer = as_role("viewer")
    assert browser.post("/api/v1/session", json={"code": _code(viewer)}).json()["role"] == "viewer"
    assert browser.get("/api/v1/tasks?limit=1").status_code == 200
    is_problem(browser.post("/api/v1/tasks/task-0/cancel"), 403, "forbidden")
    is_problem(browser.get("/api/v1/keys"), 403, "forbidden")


def test_logging_out_ends_the_session_and_not_only_the_cookie(
    running: Running, admin: httpx.Client, browser: httpx.Client
) -> None:
    browser.post("/api/v1/session", json={"code": _code(admin)})
    stolen = dict(browser.cookies)
    assert stolen
    with httpx.Client(base_url=running.url, cookies=stolen) as thief:
        assert thief.get("/api/v1/tasks?limit=1").status_code == 200
        is_problem(thief.delete("/api/v1/session", headers={"Origin": "http://evil.example"}), 403, "forbidden")
        assert browser.delete("/api/v1/session").status_code == 204
        assert not dict(browser.cookies)
        is_problem(thief.get("/api/v1/tasks?limit=1"), 401, "unauthenticated")
    assert browser.delete("/api/v1/session").status_code == 204


def test_a_session_ends_with_its_key(running: Running, admin: httpx.Client, browser: httpx.Client) -> None:
    made = admin.post("/keys", json={"name": "short"}).json()
    assert browser.post("/api/v1/session", json={"key": made["secret"]}).status_code == 201
    admin.delete(f"/keys/{made['id']}")
    is_problem(browser.get("/api/v1/tasks?limit=1"), 401, "unauthenticated")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_another_site_can_log_nobody_in(running: Running, admin: httpx.Client, headers: dict[str, str]) -> None:
    code = _code(admin)
    with httpx.Client(base_url=running.url, headers=headers) as client:
        is_problem(client.post("/api/v1/session", json={"code": code}), 403, "forbidden")
        is_problem(client.post("/api/v1/session", json={"key": running.admin_key}), 403, "forbidden")
    with httpx.Client(base_url=running.url, headers=OWN) as client:
        assert client.post("/api/v1/session", json={"code": code}).status_code == 201


@pytest.mark.parametrize("body", [{}, {"key": "a", "code": "b"}, {"key": ""}, {"kee": "a"}])
def test_a_login_is_by_one_key_or_one_code(browser: httpx.Client, body: dict[str, str]) -> None:
    is_problem(browser.post("/api/v1/session", json=body), 422, "request_invalid")


def test_a_session_is_nothing_that_the_store_or_another_cookie_gives_away(
    running: Running, admin: httpx.Client, browser: httpx.Client
) -> None:
    browser.post("/api/v1/session", json={"code": _code(admin)})
    token = browser.cookies[cookie_name(running.core)]
    for file in running.core.settings.data_dir.glob("tunefleet.db*"):
        assert token.encode() not in file.read_bytes()
    with httpx.Client(base_url=running.url, cookies={cookie_name(running.core): _code(admin)}) as client:
        is_problem(client.get("/api/v1/tasks?limit=1"), 401, "unauthenticated")  # a code is no session


def test_whoever_fails_to_log_in_too_often_must_wait(running: Running, browser: httpx.Client) -> None:
    def attempt(address: str, key: str, path: str = "/api/v1/session") -> httpx.Response:
        form = path == "/login"
        body = {"content": f"key={key}"} if form else {"content": json.dumps({"key": key})}
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        headers = {"X-Forwarded-For": address, "Content-Type": kind}
        return browser.post(path, headers=headers, **body)  # type: ignore[arg-type]

    mine = "203.0.113.7"
    for number in range(BURST - 1):
        assert attempt(mine, f"tf_wrong{number}", "/login" if number % 2 else "/api/v1/session").status_code == 401
    assert attempt(mine, running.admin_key).status_code == 201  # a good one costs nothing
    assert attempt(mine, "tf_wrong").status_code == 401
    refused = attempt(mine, running.admin_key)
    is_problem(refused, 429, "too_many")
    assert 0 < int(refused.headers["retry-after"]) <= 10
    assert attempt(mine, running.admin_key, "/login").status_code == 429
    assert attempt("203.0.113.8", running.admin_key).status_code == 201
    assert browser.get("/api/v1/tasks?limit=1").status_code == 200


def test_a_session_survives_a_restart_and_is_secure_behind_https(start: Callable[..., Running], tmp_path: Path) -> None:
    public = "https://fleet.example"
    headers = {"Origin": public, **OWN}
    running = start(tmp_path / "data", public_base_url=public)
    try:
        with running.client(headers=headers) as client:
            opened = client.post("/session", json={"key": running.admin_key})
        assert opened.status_code == 201
        assert "secure" in opened.headers["set-cookie"].lower()
        name, token = opened.headers["set-cookie"].partition(";")[0].split("=", 1)
    finally:
        running.stop()
        running.core.close()
    running = start(tmp_path / "data", public_base_url=public)
    try:
        with running.client(headers={"Cookie": f"{name}={token}", **headers}) as client:
            assert client.get("/info").json()["role"] == "admin"
            assert client.post("/login-codes").status_code == 201
    finally:
        running.stop()
        running.core.close()


def test_the_shared_token_opens_no_session(start: Callable[..., Running], tmp_path: Path) -> None:
    assert load(ServerSettings, data=tmp_path, shared_token="shared-secret-1").shared_token is not None
    running = start(tmp_path / "data", shared_token="shared-secret-1")
    try:
        with running.client(headers=OWN) as client:
            told = is_problem(client.post("/session", json={"key": "shared-secret-1"}), 401, "unauthenticated")
        assert "TUNEFLEET_SHARED_TOKEN" in told["detail"]
    finally:
        running.stop()
        running.core.close()
