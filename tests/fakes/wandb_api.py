"""Weights & Biases over real HTTP: the part of its API that its own client needs to keep a run, on loopback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fakes.listening import listening


@dataclass
class Run:
    """What is kept of a run."""

    said: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {key: value["value"] for key, value in json.loads(self.said["config"]).items()}


@dataclass
class Wandb:
    """What was told, and by whom.

    Args:
        refusal: Answered to everything instead.
    """

    url: str = ""
    refusal: int | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    told: list[bytes] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def graphql(self, query: str, said: dict[str, Any]) -> dict[str, Any]:
        name = str(said.get("name"))
        if "mutation UpsertBucket" in query:
            given = {key: value for key, value in said.items() if value is not None}
            run = self.runs.setdefault(name, Run({}))
            run.said |= given
            return {"upsertBucket": {"bucket": self._bucket(name), "inserted": len(self.runs) == 1}}
        if "query RunResumeStatus" in query:
            return {"model": {"bucket": self._bucket(name) if name in self.runs else None}}
        if "mutation CreateRunFiles" in query:
            files = [{"name": each, "uploadUrl": f"{self.url}/put/{each}"} for each in said["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, name: str, said: dict[str, Any]) -> None:
        """Take lines of files, each from where it says."""
        run = self.runs[name]
        for file, part in (said.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if file == "wandb-history.jsonl":
                run.rows[part["offset"] :] = lines
            elif file == "wandb-summary.json":
                run.summary = lines[-1]

    def _bucket(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        project = {"id": "2", "name": run.said["project"], "entity": {"id": "3", "name": run.said["entity"]}}
        return {
            "id": "1", "name": name, "displayName": run.said.get("displayName"), "config": run.said.get("config"),
            "summaryMetrics": json.dumps(run.summary), "historyLineCount": len(run.rows), "logLineCount": 0,
            "eventsLineCount": 0, "historyTail": json.dumps([json.dumps(row) for row in run.rows[-1:]]),
            "eventsTail": "[]", "tags": [], "project": project, "sweepName": None, "wandbConfig": '{"t": 1}',
        }  # fmt: skip


@contextmanager
def wandb_api() -> Iterator[Wandb]:
    """Serve one on loopback."""
    state = Wandb()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            state.told.append(body)
            state.keys.add(self.headers.get("Authorization") or "")
            said: dict[str, Any] = {}
            if state.refusal is None and self.path == "/graphql":
                asked = json.loads(body)
                said = {"data": state.graphql(asked["query"], asked.get("variables") or {})}
            elif state.refusal is None and self.path.endswith("/file_stream"):
                state.stream(self.path.split("/")[-2], json.loads(body))
            data = json.dumps(said).encode()
            self.send_response(state.refusal or 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _do

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                return  # a client that has ended

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with listening(Handler) as state.url:
        yield state
