"""What a server answers is what its OpenAPI document says, whatever it is sent."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, submit
from tests.integration.api.test_isolation import MARK, Known
from tunefleet.orchestrator.federation import upload_guide


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Asked, ask, operations
    from tests.properties.api.conforming import Asked, ask, operations


EMPTY = {
    "GET /api/v1/federations/{federation_id}/versions/{version}",
    "GET /api/v1/federations/{federation_id}/versions/{version}/adapter",
    "GET /api/v1/federations/{federation_id}/versions/{version}/config",
    "GET /api/v1/tasks/{task_id}/commands/{command_id}",
    "GET /api/v1/tasks/{task_id}/chat",
    "GET /api/v1/tasks/{task_id}/v1/models",
    "GET /api/v1/results/{task_id}",
    "GET /api/v1/results/{task_id}/files/{name}",
    "GET /api/v1/workers/{worker_id}/commands/{command_id}",
    "GET /api/v1/hub/models",  # asks the Hub, which no test reaches here
    "GET /api/v1/storage",
    "GET /api/training/local/metrics",
    "GET /api/training/local/{task_id}/analyze-failure",
    "GET /api/training/agents/{agent_id}",
    "GET /api/training/checkpoints/{job_id}",
    "GET /api/training/checkpoints/{job_id}/download",
    "GET /api/training/jobs/{job_id}/checkpoint",
    "GET /api/datasets/chunks/{job_id}/{number}/download",
}
"""What there is none of here, or what is for the operator alone: its answers are problems."""


@pytest.fixture
def asked(
    running: Running, first: Known, member: Callable[..., httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> Asked:
    """The owner of something of everything, and the token of a job of theirs."""
    monkeypatch.setattr(upload_guide, "HELD_S", 0.3)
    owner = member(MARK, role="admin")
    hand = HandWorker(member(MARK, role="worker"), f"asked-{uuid.uuid4().hex[:6]}", slots=1)
    hand.register()
    task_id = submit(owner)
    token = hand.take(task_id)
    key = owner.headers["Authorization"].removeprefix("Bearer ")
    return Asked(running.url, {**first.ids, "task_id": task_id}, key, token, examples=1)


def _agrees(admin: httpx.Client, asked: Asked) -> None:
    document = admin.get("/openapi.json").json()
    told = ask(asked, operations(document))
    wrong = "\n".join(f"{what}\n    {request}" for what, request in told.wrong.items())
    assert not wrong, f"The server does not respond as its document says:\n{wrong}"
    assert len(told.sent) == sum(len(methods) for methods in document["paths"].values())
    assert [name for name, count in told.sent.items() if count == 0] == []
    reading = {name for name in told.sent if name.startswith("GET ")}
    blind = {name for name in reading if not any(status < 300 for status in told.statuses[name])}
    assert blind <= EMPTY, "these have shown nothing that could be compared"
    assert admin.get("/healthz").status_code == 200


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_answers_are_as_the_document_says(admin: httpx.Client, asked: Asked) -> None:
    _agrees(admin, asked)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_answers_are_as_the_document_says_whatever_chance_sends(admin: httpx.Client, asked: Asked) -> None:
    draw = random.SystemRandom().randrange(1 << 32)
    print(f"seed {draw}")
    _agrees(admin, replace(asked, examples=30, draw=draw))
