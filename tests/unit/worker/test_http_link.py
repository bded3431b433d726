"""The HTTP link when what answers is not a good server."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from tunefleet.errors import ForbiddenError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Finish
from tunefleet.transport.http import HttpLink

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


OFFER = {"task_id": "task-1", "workflow_id": "wf-1", "attempt": 1, "kind": "echo", "name": "n", "spec": {}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attempt": "first"}, "attempt must be an integer"),
        ({"spec": None}, "spec must be a mapping"),
        ({"slot_class": "orbit"}, "slot_class must be one of job, light"),
        ({"inputs": {"data.path": 7}}, r"inputs\.data\.path must be"),
        ({"kind": None, "name": None}, r"kind must .*; name must "),
    ],
)
def test_an_offer_that_cannot_be_read_hides_nothing_else(change: dict[str, object], why: str) -> None:
    body = {"offers": [{**OFFER, "token": "bad", **change}, {**OFFER, "token": "good"}], "finished": ["t"]}
    reply = _link(lambda _: httpx.Response(200, json=body)).exchange(REQUEST)
    assert reply.finished == ("t",)
    assert [offer.token for offer in reply.offers] == ["bad", "good"]
    assert re.search(why, reply.offers[0].unreadable or "")
    assert reply.offers[1].unreadable is None


@pytest.mark.parametrize(
    "more",
    [
        {"offers": [OFFER]},
        {"desired": [{"token": "t", "action": "of a newer server", "generation": 1}]},
        {"commands": [{"token": "t", "command_id": 7, "command": "save"}]},
        {"behind": [{"token": 3}]},
    ],
)
def test_what_cannot_be_read_at_all_is_left_out_and_logged(
    more: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = more
    reply = _link(lambda _: httpx.Response(200, json={"finished": ["t"], **more})).exchange(REQUEST)
    assert reply.finished == ("t",)
    assert getattr(reply, name) == ()
    assert "Ignoring a message of the server that this version cannot parse" in caplog.text


def test_tasks_that_go_along_with_an_offer_that_cannot_be_read_keep_their_tokens() -> None:
    body = {"offers": [{**OFFER, "token": "bad", "attempt": "x", "merged": [{"token": "child", "task_id": 5}, {}]}]}
    (offer,) = _link(lambda _: httpx.Response(200, json=body)).exchange(REQUEST).offers
    assert [(part.token, part.task_id) for part in offer.merged] == [("child", "")]
