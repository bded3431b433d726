"""The HTTP link when what answers is not a good server."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tunefleet.errors import ForbiddenError, UnreachableError
from tunefleet.links.http import HttpLink
from tunefleet.wire.link import ExchangeReply, ExchangeRequest, Finish

REQUEST = ExchangeRequest(worker_id="w", session="s", wait_s=2.0)


def _link(answer: Callable[[httpx.Request], httpx.Response]) -> HttpLink:
    return HttpLink("http://fleet.example/", "tf_key", transport=httpx.MockTransport(answer))


def test_messages_travel_as_json_with_the_key() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"finished": ["t"], "field_of_a_newer_server": 1})

    finish = Finish(token="t", outcome="completed", reason="finished")
    reply = _link(answer).exchange(REQUEST.model_copy(update={"finishes": (finish,)}))
    assert reply == ExchangeReply(finished=("t",))
    assert str(seen[0].url) == "http://fleet.example/api/v1/link/exchange"
    assert seen[0].headers["Authorization"] == "Bearer tf_key"
    assert seen[0].extensions["timeout"]["read"] > 2.0
    assert ExchangeRequest.model_validate_json(seen[0].content).finishes == (finish,)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(500, text="boom"),
        httpx.Response(502, text="<html>bad gateway</html>"),
        httpx.Response(503, json={}),
        httpx.Response(200, text="<html>a captive portal</html>"),
    ],
)
def test_a_bad_moment_of_the_server_is_worth_another_try(response: httpx.Response) -> None:
    with pytest.raises(UnreachableError):
        _link(lambda _: response).exchange(REQUEST)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])
def test_a_broken_connection_is_worth_another_try(error: Exception) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(UnreachableError, match=r"fleet\.example"):
        _link(fail).exchange(REQUEST)


def test_a_refusal_keeps_the_servers_words() -> None:
    problem = {
        "type": "urn:tunefleet:error:forbidden",
        "title": "Forbidden",
        "status": 403,
        "detail": "A viewer key cannot be used by a worker.",
    }
    with pytest.raises(ForbiddenError, match="viewer key"):
        _link(lambda _: httpx.Response(403, json=problem)).exchange(REQUEST)
