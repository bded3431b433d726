"""The OpenAPI document is valid and complete, and nothing sent to it makes the server fail."""

from __future__ import annotations

import contextlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode

from tests.integration.server.support import HandWorker, Running, submit
from tunefleet import wire
from tunefleet.services.federation import guide
from tunefleet.spec import federating

BUDGET_S = 20.0
HOMES = [federating, *(import_module(f"{wire.__name__}.{each.name}") for each in pkgutil.iter_modules(wire.__path__))]
PUBLIC = {"/api/v1/healthz", "/api/v1/session", "/api/v1/join", "/api/v1/info", "/api/v1/schema", "/healthz"}


@pytest.fixture
def document(admin: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = admin.get("/openapi.json").json()
    return found


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_document_is_valid(document: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(document).validate()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(_references(document)) <= known


def test_every_operation_is_described_tagged_and_protected(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in _operations(document):
        where = f"{method} {path}"
        assert operation["description"], where
        assert set(operation["tags"]) <= tags, where
        assert "application/problem+json" in operation["responses"]["default"]["content"], where
        assert (operation.get("security") == []) == (path in PUBLIC), where


def test_every_json_body_has_an_example_that_fits(document: dict[str, Any]) -> None:
    for path, method, operation in _operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            assert "example" in body, f"{method} {path} has no example (server/examples.py)"
            forms = [body["schema"], *body["schema"].get("anyOf", ())]
            names = [form["$ref"].rpartition("/")[2] for form in forms if "$ref" in form]
            for name in names[:1]:  # the guide's own route describes its body in place
                model = next(getattr(home, name) for home in HOMES if hasattr(home, name))
                assert model.model_validate(body["example"]), f"{method} {path}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_that_is_sent_makes_the_server_fail(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers are lost after a second here, so no fuzzed long poll is held longer than a third of it.
    running = start(tmp_path / "data", lost_after_s=1.0)
    monkeypatch.setattr(guide, "HELD_S", 0.3)
    try:
        with running.client(running.admin_key) as admin, running.client(running.worker_key) as worker:
            task_id = submit(admin)
            hand = HandWorker(worker, "fuzzed")
            hand.register()
            token = hand.take(task_id)
            made = admin.post("/federations", json={}).json()
            known = {"task_id": task_id, "federation_id": made["id"], "job_id": str(made["number"])}
            schema = schemathesis.openapi.from_dict(admin.get("/openapi.json").json())
            ends = time.monotonic() + BUDGET_S
            sent = {
                f"{operation.ok().method} {operation.ok().path}": _fuzz(
                    operation.ok(), running.url, known, running.admin_key, token, ends
                )
                for operation in schema.get_all_operations()
            }
            assert [name for name, count in sent.items() if count == 0] == []
            assert {"get /api/v1/live", "post /api/v1/session", "get /api/v1/storage", "get /api/v1/overview"} <= set(
                sent
            )
            assert admin.get("/healthz").status_code == 200
    finally:
        running.stop()
        running.core.close()


def _fuzz(operation: Any, url: str, known: dict[str, str], key: str, token: str, ends: float) -> int:
    """Send what fits the document and what does not; returns how many requests were sent."""
    reports = ("/journal", "/log", "/metrics", "/status", "/logs", "/predictions")
    of_attempt = operation.path.endswith(reports) and operation.method != "get"
    headers = {"Authorization": f"Bearer {token if of_attempt else key}"}
    names = {parameter.name for parameter in operation.path_parameters}
    ends_it = operation.method == "delete" or operation.path.endswith("/cancel")
    paths = {name: value for name, value in known.items() if name in names and not ends_it}
    sent = 0

    def send(case: Case) -> None:
        nonlocal sent
        if sent >= 2 and time.monotonic() > ends:
            return
        sent += 1
        asked = case.as_transport_kwargs(base_url=url, headers=headers)
        # A stream has no end: its first line is enough.
        with requests.request(**asked, timeout=60, stream=True) as reply:
            assert reply.status_code < 500, (case.as_curl_command(), reply.text)
            if reply.status_code >= 400:
                kind = reply.headers["content-type"]
                assert kind.startswith(("application/problem+json", "text/plain")), reply.text

    for mode, examples in [(GenerationMode.POSITIVE, 4), (GenerationMode.NEGATIVE, 4)]:
        limits = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        strategy = operation.as_strategy(generation_mode=mode, path_parameters=paths or None)
        with contextlib.suppress(Unsatisfiable):  # some operations have nothing that could be wrong
            limits(given(case=strategy)(send))()
    return sent
