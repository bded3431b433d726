"""What an agent is sent by chance: it answers each request in the document's words, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tests.integration.agent.conftest import AgentProcess, request, write_rows
from tunefleet.agent.routes import create_app


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Asked, Case, GenerationMode, drawn, operations
    from schemathesis import Case, GenerationMode

    from tests.properties.api.conforming import Asked, drawn, operations


pytestmark = [
    pytest.mark.proof,
    # FastAPI's own field of an optional body, when a document is made of it; the agent publishes none.
    pytest.mark.filterwarnings(
        "ignore:The 'alias' attribute with value 'body':pydantic.warnings.UnsupportedFieldAttributeWarning"
    ),
]
KEY = "the-agents-key"
JOB = "there"
VERBS = "POST /api/agent/commands"
"""What fits it would start the agent again, or install another version; only what does not fit is sent."""
STREAM = "GET /api/training/stream/{job_id}"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[AgentProcess]:
    """An agent with a key, and a job whose training begins."""
    folder = tmp_path_factory.mktemp("kept")
    write_rows(folder / "datasets")
    env = {
        "BACKEND_URL": "none", "TUNEFLEET_WARM_START": "false", "TUNEFLEET_HOME": str(folder / "home"),
        "AGENT_KEY": KEY,
    }  # fmt: skip
    found = AgentProcess(folder, env, free_port())
    found.start()
    yield found
    found.clean()


def routes() -> list[Any]:
    """Every operation, as the app would describe it if it published a document."""
    agent: Any = SimpleNamespace(settings=SimpleNamespace(key=None, cors_origins=()))
    return operations(create_app(agent, agent).openapi())


def cases(url: str, operation: Any) -> Iterator[Case]:
    asked = Asked(url, {}, KEY, "", examples=2)
    known = {name: JOB for name in ("job_id",) if "{job_id}" in operation.path}
    for ids in (known, {}):
        if operation.label != VERBS:
            yield from drawn(asked, operation, GenerationMode.POSITIVE, ids)
        yield from drawn(asked, operation, GenerationMode.NEGATIVE, ids)


def send(url: str, case: Case, headers: dict[str, str]) -> tuple[int, Any]:
    with requests.request(
        **case.as_transport_kwargs(base_url=url, headers=headers), timeout=30, stream=True, allow_redirects=False
    ) as reply:
        if reply.headers.get("Content-Type", "").startswith("text/event-stream"):
            return reply.status_code, {}
        return reply.status_code, reply.json()


@pytest.mark.timeout(300)
def test_whatever_it_is_sent_it_answers_and_goes_on(kept: AgentProcess) -> None:
    with_key = {"Authorization": f"Bearer {KEY}"}
    assert kept.post("/api/training/execute", request(JOB, max_steps=1), headers=with_key).status_code == 200
    url, seen = f"http://127.0.0.1:{kept.port}", {}
    for operation in routes():
        seen[operation.label] = set()
        for case in cases(url, operation):
            status, body = send(url, case, with_key)
            assert status < 500, case.as_curl_command()
            assert status < 400 or body.get("detail"), case.as_curl_command()
            seen[operation.label].add(status)
    assert kept.process is not None
    assert kept.process.poll() is None
    assert kept.get("/health", headers=with_key).json()["status"] == "ok"
    assert "Traceback" not in kept.out()
    answered = {label for label, statuses in seen.items() if 200 in statuses}
    assert {label for label in seen if label.startswith("GET ")} <= answered
    assert not [label for label, statuses in seen.items() if not statuses]


def test_every_route_asks_for_the_key(kept: AgentProcess) -> None:
    url = f"http://127.0.0.1:{kept.port}"
    for operation in routes():
        case = next(cases(url, operation))
        for headers in ({}, {"Authorization": "Bearer another"}):
            status, body = send(url, case, headers)
            assert (status, bool(body["detail"])) == (401, True), operation.label
