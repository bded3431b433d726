"""What the program on a Ray cluster asks the server, and what it goes by while that does not respond."""

from __future__ import annotations

import io
import urllib.request
from dataclasses import replace
from typing import Any
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit

import pytest

from tunefleet.integrations.clusters.base import NodeRequest
from tunefleet.integrations.clusters.ray import lasting
from tunefleet.workloads.ray_nodes.demand import Demand

ASK = NodeRequest(
    "lab", 2, 5000, ("tunefleet", "worker"), {"TUNEFLEET_WORKER_TAGS": "a100,lab", "TUNEFLEET_ALLOW_CODE": "true"},
    cpu=4, memory_bytes=1 << 30, gpu_count=1,
)  # fmt: skip


class Server:
    """Answers as told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[bytes | Exception] = []
        self.asked: list[urllib.request.Request] = []

    def urlopen(self, asked: urllib.request.Request, timeout: float) -> Any:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(urllib.request, "urlopen", server.urlopen)
    monkeypatch.setattr("tunefleet.workloads.ray_nodes.demand._ASK_S", 0.0)
    return server


def test_it_says_what_the_workers_have_and_asks_for_one_number_however_many_may_come(server: Server) -> None:
    server.answers = [b'{"workers": 3000}']
    assert Demand(lasting(ASK, server="http://s:1/", key="tf_k")).waiting() == 3000
    (asked,) = server.asked
    url = urlsplit(asked.full_url)
    assert (url.netloc, url.path) == ("s:1", "/api/v1/tasks/demand")
    assert parse_qs(url.query) == {
        "pool": ["lab"], "cpu": ["4"], "memory_bytes": [str(1 << 30)], "gpu_count": ["1"], "tags": ["a100,lab"],
        "allow_code": ["true"],
    }  # fmt: skip
    assert asked.get_header("Authorization") == "Bearer tf_k"


def test_what_was_known_last_counts_while_the_server_does_not_answer(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [b'{"workers": 2}', URLError("away"), TimeoutError(), b"<html>", b"{}", b'{"workers": 1}']
    demand = Demand(lasting(replace(ASK, environment={}), server="http://s:1", key="tf_k"))
    assert [demand.waiting() for _ in range(6)] == [2, 2, 2, 2, 2, 1]
    assert capsys.readouterr().out.count("Cannot read the demand from the server") == 4


def test_without_a_server_nothing_waits(server: Server) -> None:
    assert Demand(lasting(ASK)).waiting() == 0
    assert server.asked == []
