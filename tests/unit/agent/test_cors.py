"""A web page calls an agent only where `CORS_ALLOW_ORIGINS` names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tunefleet.agent.routes import create_app
from tunefleet.settings import AgentSettings

PAGE = "https://lab.example"
QUEUE = "/api/training/queue"


def client(*origins: str) -> TestClient:
    settings = AgentSettings(CORS_ALLOW_ORIGINS=",".join(origins)) if origins else AgentSettings()
    agent: Any = SimpleNamespace(settings=settings)
    return TestClient(create_app(agent, agent), base_url="http://localhost")


def preflight(of: TestClient, origin: str) -> Any:
    return of.options(QUEUE, headers={"Origin": origin, "Access-Control-Request-Method": "GET"})


def test_without_a_list_no_page_calls() -> None:
    reply = preflight(client(), PAGE)
    assert "access-control-allow-origin" not in reply.headers
    assert client().get(QUEUE, headers={"Origin": PAGE}).status_code == 403


@pytest.mark.parametrize(("origin", "may"), [(PAGE, True), ("https://evil.example", False), ("null", False)])
def test_a_page_of_the_list_calls_and_no_other(origin: str, may: bool) -> None:
    agent = client(PAGE, "https://other.example")
    assert (preflight(agent, origin).headers.get("access-control-allow-origin") == origin) == may
    refused = agent.get(QUEUE, headers={"Origin": origin})
    assert ("web page" in refused.text) != may, "whoever it is still has to be a process of the agent's user"
