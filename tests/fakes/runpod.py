"""RunPod serverless over real HTTP: jobs of one endpoint, whose end a test decides, or a handler in RunPod's SDK.

The SDK's local server runs a job when it is asked how it is, and answers when it has ended. As RunPod does, the double
begins a job by itself, and answers at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx

from tests.fakes.listening import listening

KEY = "runpod-key-0123456789"
ENDPOINT = "merger"


@dataclass
class Jobs:
    """What was sent, and what is said of each job.

    Args:
        script: What the looks at any job say, in order; the last one stays.
        behind: Address of the SDK's local server that does the jobs, if one does.
        answering: Cleared, no answer to a job that was sent goes out: it is taken, and nobody is told.
    """

    script: list[dict[str, Any]] = field(default_factory=lambda: [{"status": "IN_QUEUE"}])
    refusal: int | None = None
    url: str = ""
    sent: list[dict[str, Any]] = field(default_factory=list)
    looks: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    behind: str | None = None
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    answering: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answering.set()

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.sent.append(body)
            job = f"job-{len(self.sent)}"
        if self.behind is not None:
            threading.Thread(target=self._do, args=(job, self.behind, body), daemon=True).start()
        return {"id": job, "status": "IN_QUEUE"}

    def _do(self, job: str, url: str, body: dict[str, Any]) -> None:
        with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
            known = http.post("/run", json={"input": body["input"]}).raise_for_status().json()
            self.ended[job] = http.post(f"/status/{known['id']}").raise_for_status().json()

    def status(self, job: str) -> tuple[int, dict[str, Any]]:
        if self.behind is not None:
            return 200, {**self.ended.get(job, {"status": "IN_PROGRESS"}), "id": job}
        with self.lock:
            at = self.looks.get(job, 0)
            self.looks[job] = at + 1
        said = self.script[min(at, len(self.script) - 1)]
        return (404, {"error": "job not found"}) if said["status"] == "GONE" else (200, {"id": job, **said})


@contextmanager
def runpod() -> Iterator[Jobs]:
    """Serve one on loopback."""
    state = Jobs()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._do(lambda: (200, state.run(body)) if self.path == f"/v2/{ENDPOINT}/run" else (404, {}))

        def _answer(self, status: int, data: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                return  # whoever asked was killed

        def do_GET(self) -> None:
            job = self.path.removeprefix(f"/v2/{ENDPOINT}/status/")
            self._do(lambda: state.status(job))

        def _do(self, act: Any) -> None:
            keyed = self.headers.get("Authorization") == f"Bearer {KEY}"
            status, value = (401, {}) if not keyed else (state.refusal, {}) if state.refusal else act()
            data = json.dumps(value).encode()
            if self.command == "POST":
                state.answering.wait()
            self._answer(status, data)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with listening(Handler) as url:
        state.url = f"{url}/v2"
        try:
            yield state
        finally:
            state.answering.set()
