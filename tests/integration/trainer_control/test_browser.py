"""A page of another origin in a real browser tries all that a page can, and a live job gets nothing of it."""

from __future__ import annotations

import http.server
import json
import logging
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import ClassVar

import pytest

from tunefleet.trainer_control.control import discovery
from tunefleet.trainer_control.standalone import StandaloneJob, StandaloneOptions

pytestmark = [pytest.mark.proof]

# Each way is tried at every target; what the page can read of the answer ends in the document.
PAGE = """<!doctype html><meta charset="utf-8"><pre id="said">[]</pre><script>
const body = '{"command": "abort"}', said = [], pending = [];
function note(way, target, what) {
    said.push([way, target, what]);
    document.getElementById("said").textContent = JSON.stringify(said);
}
function go(way, target, path, options) {
    pending.push(fetch(`http://${target}${path}`, options).then(
        async (answer) => note(way, target, `${answer.type} ${answer.status} ${await answer.text()}`),
        (error) => note(way, target, error.name)));
}
for (const target of TARGETS) {
    const control = "/jobs/mine/control";
    const json = {method: "POST", headers: {"Content-Type": "application/json"}, body};
    go("text", target, control, {method: "POST", headers: {"Content-Type": "text/plain"}, body});
    go("json", target, control, json);
    go("no-cors", target, control, {method: "POST", mode: "no-cors", body});
    go("typed no-cors", target, control, {...json, mode: "no-cors"});
    go("beside", target, control, {...json, credentials: "include", keepalive: true});
    go("read", target, "/jobs/mine/status", {});
    note("beacon", target, String(navigator.sendBeacon(`http://${target}${control}`, body)));
    const frame = document.createElement("iframe"), form = document.createElement("form");
    frame.name = `frame-${target}`;
    Object.assign(form, {method: "POST", enctype: "text/plain", target: frame.name});
    form.action = `http://${target}${control}`;
    const input = document.createElement("input");
    // What arrives is JSON: {"command": "abort", "x": "="}
    Object.assign(input, {type: "hidden", name: '{"command": "abort", "x": "', value: '"}'});
    form.append(input);
    document.body.append(frame, form);
    form.submit();
}
</script>"""


class Site(http.server.BaseHTTPRequestHandler):
    """Serves the page, and as an unprotected server notes what the same page gets through there."""

    page: ClassVar[str] = ""
    got: ClassVar[list[tuple[str, str, str]]] = []

    def do_GET(self) -> None:
        self._answer(self.page if self.path == "/page" else "{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.got.append((self.command, self.headers.get_content_type(), body.strip()))
        self._answer("{}")

    do_OPTIONS = do_POST

    def log_message(self, format: str, *args: object) -> None:
        logging.getLogger("site").debug(format, *args)

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def site() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def visit(browser: str, url: str, profile: Path) -> list[list[str]]:
    """Open a page, and return what it has noted."""
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
        "--no-first-run", "--disable-extensions", "--disable-component-update", "--disable-background-networking",
        "--no-proxy-server", "--host-resolver-rules=MAP * 127.0.0.1", "--virtual-time-budget=5000", "--dump-dom",
    ]  # fmt: skip
    ran = subprocess.run([browser, *options, url], capture_output=True, text=True, timeout=100, check=False)
    found = re.search(r'<pre id="said">(.*?)</pre>', ran.stdout, re.S)
    assert found, f"the page did not run: {ran.stdout}\n{ran.stderr}"
    return [list(map(str, item)) for item in json.loads(unescape(found.group(1)))]


@pytest.mark.parametrize("origin", ["localhost", "evil.example"])
def test_a_page_of_another_origin_cannot_drive_a_job(
    chromium: str, jobs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, origin: str
) -> None:
    """From the same host name with another port, and from a name that has been rebound to this machine."""
    caplog.set_level(logging.DEBUG, "tunefleet.control")
    job = StandaloneJob.open(StandaloneOptions("mine"))
    try:
        with site() as ours, site() as unprotected:
            # The last one stands for a server without any checks: what comes through there did leave the browser.
            hosts = [f"localhost:{job.server.port}", f"127.0.0.1:{job.server.port}", f"evil.example:{job.server.port}"]
            witness = f"localhost:{unprotected}"
            Site.page, Site.got = PAGE.replace("TARGETS", json.dumps([*hosts, witness])), []
            said = visit(chromium, f"http://{origin}:{ours}/page", tmp_path / "profile")
        log = [record.getMessage() for record in caplog.records if record.name == "tunefleet.control"]
        assert not job.board.armed
        assert job.board._known == {}
        assert not (jobs / "mine/commands.json").exists()
    finally:
        job.on_exit()
        discovery._release()
    assert len(said) == 7 * 4, said
    read = {what for way, host, what in said if host in hosts and way != "beacon"}
    assert read == {"TypeError", "opaque 0 "}, "the page could read an answer"
    kinds = [kind for method, kind, _ in Site.got if method == "POST"]
    # text, no-cors twice, a beacon and the form; JSON only after a preflight that nobody has allowed.
    assert kinds == ["text/plain"] * 5, Site.got
    assert '{"command": "abort", "x": "="}' in [body for _, _, body in Site.got]
    asked = [line for line in log if " /jobs/mine/" in line]
    assert {line.rpartition('" ')[2] for line in asked} == {"403 -"}, asked
    assert sum('"POST' in line for line in asked) == 3 * 5
    assert sum('"OPTIONS' in line for line in asked) == 3 * 2
    assert sum('"GET' in line for line in asked) == 3
