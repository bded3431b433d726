"""No large body is parsed on the event loop: while one is read, others are answered."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tunefleet.api import auth, problem_details, request_bodies
from tunefleet.api.routers import campaigns, federations, tasks, workflows
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.workflows import workflows as service

LONG = "#" * request_bodies.LARGE_BYTES
YAML = "application/yaml"
JSON = "application/json"


async def _admin(_: object) -> Actor:
    return Actor("key-1", "anna", "admin")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    app = FastAPI()
    for module in (tasks, workflows, campaigns, federations):
        app.include_router(module.router)
    problem_details.install(app, auth.require_known)
    app.state.core = None  # what is refused for its body gets to no service that needs one
    monkeypatch.setattr(auth, "identify", _admin)
    monkeypatch.setattr(auth, "identify_participant", _admin)
    return app


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which parsers ran, and in which thread."""
    found: list[tuple[str, int]] = []

    def watch(module: object, name: str) -> None:
        original = getattr(module, name)

        def noted(*args: Any, **options: Any) -> Any:
            found.append((name, threading.get_ident()))
            return original(*args, **options)

        monkeypatch.setattr(module, name, noted)

    for module, name in (
        (request_bodies, "parse"),
        (request_bodies, "text"),
        (tasks, "document"),
        (workflows, "_is_document"),
        (service, "parse_workflow"),
        (explain, "parse_workflow"),
    ):
        watch(module, name)
    return found


@pytest.mark.parametrize(
    ("path", "kind", "body", "parsers"),
    [
        ("/tasks", YAML, LONG, {"document", "parse_workflow"}),
        ("/tasks", JSON, json.dumps({"yaml": LONG}), {"document", "parse_workflow"}),
        ("/workflows", YAML, LONG, {"text", "parse_workflow"}),
        ("/workflows", JSON, json.dumps({"document": LONG}), {"_is_document", "parse", "parse_workflow"}),
        ("/workflows", JSON, json.dumps({"spec": LONG}), {"_is_document", "text", "parse_workflow"}),
        ("/workflows/validate", YAML, LONG, {"text", "parse_workflow"}),
        ("/workflows/validate", JSON, json.dumps({"document": LONG}), {"_is_document", "parse", "parse_workflow"}),
        ("/workflows/validate?dry_run=true", YAML, LONG, {"text", "parse_workflow"}),
        ("/campaigns", JSON, json.dumps({"campaigns": LONG}), {"parse"}),
        ("/federations", JSON, json.dumps({"name": LONG}), {"parse"}),
    ],
)
async def test_a_route_parses_a_large_document_in_a_thread(
    app: FastAPI, parsing: list[tuple[str, int]], path: str, kind: str, body: str, parsers: set[str]
) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here/api/v1") as client:
        answer = await client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code in {200, 400, 422}, answer.text
    assert {name for name, _ in parsing} == parsers
    assert threading.get_ident() not in {thread for _, thread in parsing}


async def test_a_small_body_is_parsed_where_it_is() -> None:
    assert await request_bodies.parsed(lambda body: threading.get_ident(), b"small") == threading.get_ident()
