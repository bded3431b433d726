"""What is open by itself, what a browser is given, and what it takes for a page of the server."""

from __future__ import annotations

import hashlib
import http.server
import ipaddress
import socket
import tracemalloc
from typing import Any

import httpx
import pytest

from tests.fakes.listening import listening
from tests.integration.api.support import Running
from tunefleet.api.auth import cookie_name
from tunefleet.api.multipart import FilePart
from tunefleet.artifacts import manifest_digest
from tunefleet.client.external.ssrf_guard import SsrfGuard
from tunefleet.errors import ForbiddenError, InputError
from tunefleet.schemas.api import FileEntry
from tunefleet.settings import AgentSettings, ServerSettings, load

PAGE = b"<!doctype html><script>fetch('/api/v1/keys')</script>"
PARTS = 500
PART_BYTES = 16 << 10


@pytest.mark.parametrize("settings", [ServerSettings, AgentSettings])
def test_nobody_else_reaches_what_was_not_told_to_listen(settings: Any) -> None:
    assert ipaddress.ip_address(load(settings).host).is_loopback


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(running: Running, admin: httpx.Client) -> None:
    own = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
    opened = httpx.post(f"{running.url}/api/v1/session", json={"key": running.admin_key}, headers=own)
    assert opened.status_code == 201
    name, *attributes = opened.headers["set-cookie"].split("; ")
    assert name.startswith(f"{cookie_name(running.core)}=")
    given = {each.lower() for each in attributes}
    assert {"httponly", "samesite=strict", "path=/"} <= given
    assert not [each for each in given if each.startswith("domain")], "it would go to neighbours of that name too"
    assert running.admin_key not in opened.headers["set-cookie"]


def test_a_stored_page_is_no_page_of_the_server(admin: httpx.Client) -> None:
    digest = hashlib.sha256(PAGE).hexdigest()
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(PAGE)), "Content-Type": "application/octet-stream"}
    assert admin.put(f"/blobs/{digest}", content=PAGE, headers=headers).is_success
    entry = FileEntry(path="page.html", digest=digest, size_bytes=len(PAGE))
    body = {"name": "rows", "kind": "dataset", "files": [entry.model_dump()], "digest": manifest_digest([entry])}
    stored = admin.post("/artifacts", json=body).json()["id"]
    reply = admin.get(f"/artifacts/{stored}/files/page.html")
    assert reply.content == PAGE
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"].startswith("attachment")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in reply.headers["content-security-policy"]


def test_parts_of_a_form_that_nobody_wants_are_not_kept() -> None:
    taken: list[int] = []
    form = FilePart("multipart/form-data; boundary=b", lambda piece: taken.append(len(piece)), named=False)
    part = b'--b\r\nContent-Disposition: form-data; name="x%d"\r\n\r\n' + b"a" * PART_BYTES + b"\r\n"
    tracemalloc.start()
    try:
        for number in range(PARTS):
            form.feed(part % number)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < PARTS * PART_BYTES // 10
    assert (taken, form.texts) == ([], {})
    form.feed(b"--b--\r\n")
    with pytest.raises(InputError, match="no file"):
        form.finish()


def test_a_name_that_changes_after_the_look_up_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads to an allowed address when it is checked, and anywhere else as soon as it is asked for again."""
    asked: list[str] = []
    told: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            told.append(self.headers["Host"])
            self.send_response(204)
            self.end_headers()

    look_up = socket.getaddrinfo

    def changing(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "turns.example":
            return look_up(host, port, *args, **options)
        asked.append(host)
        leads_to = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
        return look_up(leads_to, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    with listening(Handler) as url:
        port = url.rpartition(":")[2]
        reach = SsrfGuard(("127.0.0.0/8",))
        assert reach.send("GET", f"http://turns.example:{port}/").status_code == 204
        assert (asked, told) == (["turns.example"], [f"turns.example:{port}"])
        with pytest.raises(ForbiddenError, match="never allowed"):
            reach.send("GET", f"http://turns.example:{port}/")
        assert len(told) == 1
