"""A server's blobs, artifacts and faults, as an httpx transport: no socket, no thread."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tunefleet.client.connection import Connection
from tunefleet.client.transport import AsyncTransport, Policy, Transport
from tunefleet.schemas.api import PROBLEM_PREFIX

URL = "http://server.test"
QUICK = Policy(patience_s=0.3)


def problem(status: int, code: str, detail: str, **more: Any) -> httpx.Response:
    body = {"type": PROBLEM_PREFIX + code, "title": code, "status": status, "detail": detail, **more}
    return httpx.Response(status, json=body, headers={"Content-Type": "application/problem+json"})


@dataclass
class FakeServer(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers like the server, and fails as often as it is told."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    partials: dict[str, bytes] = field(default_factory=dict)
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)
    answers: list[httpx.Response | Exception] = field(default_factory=list)
    """Given before anything else."""
    break_uploads_after: list[int] = field(default_factory=list)
    """The next uploads break after so many bytes."""
    break_downloads_after: list[int] = field(default_factory=list)

    def sync(self, policy: Policy = QUICK) -> Transport:
        return Transport(Connection(URL, "tf_key"), policy, network=self)

    def asynchronous(self, policy: Policy = QUICK) -> AsyncTransport:
        return AsyncTransport(Connection(URL, "tf_key"), policy, network=self)

    @property
    def seen(self) -> list[str]:
        return [f"{request.method} {request.url.path.removeprefix('/api/v1')}" for request in self.requests]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        pieces = iter(request.stream) if isinstance(request.stream, httpx.SyncByteStream) else iter(())
        return self._answer(request, pieces)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        pieces = [piece async for piece in request.stream] if isinstance(request.stream, httpx.AsyncByteStream) else []
        return self._answer(request, iter(pieces))

    def _answer(self, request: httpx.Request, pieces: Iterator[bytes]) -> httpx.Response:
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        path = request.url.path.removeprefix("/api/v1")
        match request.method, path.split("/")[1:]:
            case "POST", ["blobs", "missing"]:
                return self._missing(json.loads(b"".join(pieces)))
            case "PUT", ["blobs", digest]:
                return self._put(request, digest, pieces)
            case "GET", ["blobs", digest]:
                return self._get(request, digest)
            case "POST", ["artifacts"]:
                return self._publish(json.loads(b"".join(pieces)))
            case "GET", ["artifacts", name]:
                found = next((a for a in self.artifacts.values() if name in {a["id"], a["name"], a["digest"]}), None)
                return httpx.Response(200, json=found) if found else problem(404, "not_found", f"No artifact {name}.")
        return problem(404, "not_found", f"No route {path}.")

    def _missing(self, body: dict[str, Any]) -> httpx.Response:
        lacking = [
            {"digest": blob["digest"], "offset": len(self.partials.get(blob["digest"], b""))}
            for blob in body["blobs"]
            if blob["digest"] not in self.blobs
        ]
        return httpx.Response(200, json={"missing": lacking})

    def _put(self, request: httpx.Request, digest: str, pieces: Iterator[bytes]) -> httpx.Response:
        offset = int(request.headers["Upload-Offset"])
        have = self.partials.get(digest, b"")
        if offset != len(have):
            return problem(409, "offset_conflict", "Wrong offset.", cursor=len(have))
        limit = self.break_uploads_after.pop(0) if self.break_uploads_after else None
        for piece in pieces:
            have += piece if limit is None else piece[: max(0, offset + limit - len(have))]
            self.partials[digest] = have
            if limit is not None and len(have) >= offset + limit:
                raise httpx.WriteError("the connection broke", request=request)
        if len(have) == int(request.headers["Upload-Length"]):
            if hashlib.sha256(have).hexdigest() != digest:
                self.partials.pop(digest)
                return problem(400, "artifact_invalid", "What arrived does not match its digest.")
            self.blobs[digest] = have
            self.partials.pop(digest, None)
        return httpx.Response(201)

    def _get(self, request: httpx.Request, digest: str) -> httpx.Response:
        content = self.blobs[digest]
        span = request.headers.get("Range")
        offset = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        limit = self.break_downloads_after.pop(0) if self.break_downloads_after else None
        return httpx.Response(206 if span else 200, stream=_Body(content[offset:], limit))

    def _publish(self, body: dict[str, Any]) -> httpx.Response:
        made = {
            **body,
            "id": f"art-{len(self.artifacts):012x}",
            "size_bytes": sum(file["size_bytes"] for file in body["files"]),
            "file_count": len(body["files"]),
            "owner": "admin",
            "created_at": "2026-01-01T00:00:00Z",
        }
        self.artifacts[made["id"]] = made
        return httpx.Response(201, json=made)


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, content: bytes, limit: int | None) -> None:
        self._content = content if limit is None else content[:limit]
        self._breaks = limit is not None

    def _pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), 1000):
            yield self._content[start : start + 1000]
        if self._breaks:
            raise httpx.ReadError("the connection broke")

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces():
            yield piece
