"""Requests that were made to be misunderstood: each has an answer that says so, and the server goes on."""

from __future__ import annotations

import gzip
import hashlib
import re
import socket
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.api.support import Running, is_problem
from tunefleet.api.auth import cookie_name
from tunefleet.artifacts import manifest_digest
from tunefleet.schemas.api import FileEntry

SMUGGLED: Final = {
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "a length below nothing": b"Content-Length: -4\r\n\r\nabcd",
    "a length that is no number": b"Content-Length: \xb2\r\n\r\nab",
    "chunks of another name": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"X-A: 1\r\n Content-Length: 4\r\n\r\nabcd",
    "a space before the colon": b"Content-Length : 4\r\n\r\nabcd",
    "a header without a name": b": 4\r\n\r\n",
    "a bare line feed": b"X-A: 1\nContent-Length: 4\n\nabcd",
    "a chunk of no length": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabcd\r\n0\r\n\r\n",
}
BILLION: Final = "\n".join(
    ["a: &a0 [x, x, x, x, x, x, x, x, x]", *(f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(12))]
)
DOCUMENTS: Final = {
    "brackets": ("[" * 500_000, "application/json"),
    "objects": ('{"a":' * 100_000, "application/json"),
    "digits": ('{"a":' + "9" * 100_000 + "}", "application/json"),
    "half a character": ('{"document": "\\ud800"}', "application/json"),
    "brackets in YAML": ("[" * 100_000, "application/yaml"),
    "a billion laughs": (BILLION, "application/yaml"),
    "a call": ("!!python/object/apply:os.system ['true']", "application/yaml"),
}
PATHS: Final = (
    "..%2f..%2fkeys%2fadmin.key", "%2e%2e/%2e%2e/keys/admin.key", "..%5c..%5ckeys%5cadmin.key", "%2fetc%2fpasswd",
    "//etc/passwd", "rows.jsonl%00.txt", "rows.jsonl/", "./rows.jsonl", "a/../rows.jsonl", "a" * 40_000, "%ff%fe",
    "rows.jsonl%0d%0aSet-Cookie:%20a=b",
)  # fmt: skip
ROWS: Final = b'{"text": "rows"}\n'


def _said(running: Running, request: bytes) -> bytes:
    """Return what the server says to some bytes until it hangs up."""
    place = urlsplit(running.url)
    with socket.create_connection((str(place.hostname), place.port or 0)) as line:
        line.settimeout(60)
        line.sendall(request)
        said = b""
        while piece := line.recv(1 << 16):
            said += piece
    return said


@pytest.fixture
def artifact(admin: httpx.Client) -> str:
    digest = hashlib.sha256(ROWS).hexdigest()
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(ROWS)), "Content-Type": "application/octet-stream"}
    assert admin.put(f"/blobs/{digest}", content=ROWS, headers=headers).is_success
    entry = FileEntry(path="rows.jsonl", digest=digest, size_bytes=len(ROWS))
    body = {"name": "rows", "kind": "dataset", "files": [entry.model_dump()], "digest": manifest_digest([entry])}
    return str(admin.post("/artifacts", json=body).json()["id"])


@pytest.mark.parametrize("said", SMUGGLED.values(), ids=SMUGGLED)
def test_what_two_servers_could_read_in_two_ways_is_no_request(running: Running, said: bytes) -> None:
    """Else a proxy before it would take one request for two, or two for one, with the key of somebody else."""
    key = running.admin_key.encode()
    behind = b"GET /api/v1/keys HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n" % key
    reply = _said(running, b"POST /api/v1/workflows HTTP/1.1\r\nHost: here\r\n" + said + behind)
    assert reply.count(b"HTTP/1.1 400 ") == 1
    assert b"HTTP/1.1 200 " not in reply


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_grows_or_calls_is_refused(admin: httpx.Client, name: str) -> None:
    text, kind = DOCUMENTS[name]
    reply = admin.post("/workflows", content=text, headers={"Content-Type": kind})
    is_problem(reply, 422, "request_invalid" if kind == "application/json" else "spec_invalid")
    assert admin.get("/healthz").is_success


def test_a_packed_body_is_not_unpacked(admin: httpx.Client) -> None:
    bomb = gzip.compress(b'{"name": "' + b"a" * (64 << 20) + b'"}')
    reply = admin.post("/keys", content=bomb, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    is_problem(reply, 400, "request_invalid")


def test_who_has_no_key_is_not_told_what_is_wrong_with_a_body(running: Running, admin: httpx.Client) -> None:
    """A body that is no JSON is found out before a route is asked what it depends on."""
    described = admin.get("/openapi.json").json()
    asked = [
        (method, path)
        for path, methods in described["paths"].items()
        for method, route in methods.items()
        if "application/json" in route.get("requestBody", {}).get("content", {}) and route.get("security") != []
    ]
    assert len(asked) > 40, "all that the API has"
    kind, attempt = {"Content-Type": "application/json"}, "Bearer att-0000000000000000.0"
    for method, path in asked:
        target = running.url + re.sub(r"\{\w+\}", "1", path)
        for more in ({}, {"Authorization": "Bearer tf_nobody"}, {"Authorization": attempt}):
            for body in (b"{", b'"\xff"'):
                reply = httpx.request(method, target, content=body, headers=kind | more)
                assert reply.status_code == 401, (method, path, more, body, reply.text)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:30])
def test_no_path_leads_to_what_it_does_not_name(
    running: Running, admin: httpx.Client, artifact: str, path: str
) -> None:
    secret = running.admin_key.encode()
    for route in ("artifacts/{}/files/{}", "results/{}/files/{}", "tasks/{}/{}", "ui/{}/{}"):
        target = "/" + route.format(artifact, path)
        head = b"GET %s HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n"
        above = "" if route.startswith("ui") else "/api/v1"
        reply = _said(running, head % ((above + target).encode(), secret))
        assert reply.split(b" ", 2)[1] in (b"400", b"404", b"307", b"200"), reply[:200]
        assert secret not in reply.partition(b"\r\n\r\n")[2]
        assert b"root:" not in reply
        assert ROWS not in reply
        assert b"\r\nSet-Cookie" not in reply
        assert b"location: //" not in reply.lower()


def test_many_ranges_are_not_many_answers(admin: httpx.Client, artifact: str) -> None:
    ranges = "bytes=" + ",".join(["0-"] * 2000)
    reply = admin.get(f"/artifacts/{artifact}/files/rows.jsonl", headers={"Range": ranges})
    assert len(reply.content) <= len(ROWS)


@pytest.mark.parametrize("sent", ["a" * 65, "a b", "<script>", "é"])
def test_an_id_of_a_request_is_no_way_into_the_log(admin: httpx.Client, sent: str) -> None:
    reply = admin.get("/healthz", headers={"X-Request-ID": sent.encode()})
    assert reply.headers["X-Request-ID"] != sent
    assert reply.headers["X-Request-ID"].isalnum()


def test_a_name_that_leads_here_is_no_key(running: Running) -> None:
    """A page of another site whose name has come to stand for this machine has neither its cookie nor its key."""
    evil = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000", "Sec-Fetch-Site": "same-origin"}
    with running.client(headers=evil) as client:
        is_problem(client.get("/tasks"), 401, "unauthenticated")
        is_problem(client.post("/workflows", json={"document": "{}"}), 401, "unauthenticated")
        assert client.get("/info").json()["authenticated"] is False


def test_a_session_that_somebody_else_has_chosen_is_none(running: Running, admin: httpx.Client) -> None:
    """A cookie that was there before the log-in is good for nothing after it."""
    name, planted = cookie_name(running.core), "planted-by-another-site-0123456789"
    own = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=running.url, headers=own, cookies={name: planted}) as browser:
        opened = browser.post("/api/v1/session", json={"code": admin.post("/login-codes").json()["code"]})
        assert opened.status_code == 201
        assert planted not in opened.headers["set-cookie"]
    with httpx.Client(base_url=running.url, headers=own, cookies={name: planted}) as other:
        is_problem(other.get("/api/v1/tasks"), 401, "unauthenticated")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_a_form_of_another_site_can_send_changes_nothing(running: Running, admin: httpx.Client, kind: str) -> None:
    """Such a body goes out without a question to this server first."""
    own = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=running.url, headers=own) as browser:
        code = admin.post("/login-codes").json()["code"]
        assert browser.post("/api/v1/session", json={"code": code}).status_code == 201
        before = len(admin.get("/keys").json())
        for headers in ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            body = b'{"name": "theirs", "role": "admin"}'
            reply = browser.post("/api/v1/keys", content=body, headers=headers | {"Content-Type": kind})
            is_problem(reply, 403, "forbidden")
        assert len(admin.get("/keys").json()) == before
