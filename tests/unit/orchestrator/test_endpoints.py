"""Requests to endpoints between clients and workers: none is lost silently, and memory is bounded."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.orchestrator.lab import Lab
from tunefleet.errors import ConflictError, TooManyError, UnavailableError
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor
from tunefleet.orchestrator.serving import calls, endpoint_usage, endpoint_views, relay
from tunefleet.orchestrator.serving.calls import Call, Endpoint
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.endpoints import RelayPoll, ResponseFrame, ResponseFrames, TokenUsage
from tunefleet.schemas.worker_link import ExecutorOffer

SERVE = """apiVersion: tunefleet/v1
metadata: {name: bot}
spec:
  taskType: serve
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  serve: {name: bot, requests_per_minute: 3}
  retry: {backoff_s: 0}
"""
READY = RelayPoll(ready=True, models=("bot",))


async def serving(lab: Lab, name: str = "w1", *, submitted: bool = False) -> AttemptActor:
    """A worker that serves the endpoint."""
    worker = lab.worker(name)
    await worker.register(executors=(ExecutorOffer(kind="serve"),))
    await worker.exchange()
    if not submitted:
        await lab.submit(SERVE)
    attempt = await lab.attempt((await worker.start()).token)
    await relay.poll(lab.core, attempt, READY)
    return attempt


async def begun(lab: Lab, key: str = "key") -> tuple[Endpoint, Call]:
    endpoint = await relay.find(lab.core, lab.admin, "bot")
    return endpoint, relay.begin(lab.core, endpoint, key, "completions", b"{}")


async def send(lab: Lab, attempt: AttemptActor, *frames: ResponseFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
    receipt = await relay.receive(lab.core, attempt, ResponseFrames(frames=frames))
    return receipt.gone, receipt.full


async def test_a_request_goes_to_the_worker_and_its_response_and_usage_come_back(lab: Lab) -> None:
    attempt = await serving(lab)
    endpoint, call = await begun(lab)
    (given,) = (await relay.poll(lab.core, attempt, READY)).requests
    assert (given.id, given.path, given.body) == (call.id, "completions", b"{}")
    assert (await relay.poll(lab.core, attempt, RelayPoll(ready=True, held=(call.id,)))).requests == ()
    usage = TokenUsage(prompt_tokens=3, completion_tokens=5)
    first = ResponseFrame(id=call.id, status=200, content_type="application/json", data=b'{"a"')
    await send(lab, attempt, first, ResponseFrame(id=call.id, data=b": 1}", end=True, usage=usage))
    assert await relay.head(lab.core, endpoint, call) == (200, "application/json")
    assert b"".join([part async for part in relay.body(lab.core, endpoint, call)]) == b'{"a": 1}'
    relay.leave(lab.core, endpoint, call)
    await endpoint_usage.flush(lab.core)
    await endpoint_usage.flush(lab.core)
    view = await endpoint_views.get(lab.core, lab.admin, "bot")
    assert (view.state, view.requests, view.prompt_tokens, view.completion_tokens) == ("ready", 1, 3, 5)


async def test_what_a_worker_has_lost_is_given_out_again_unless_its_response_has_begun(lab: Lab) -> None:
    attempt = await serving(lab)
    endpoint, started = await begun(lab)
    _, untouched = await begun(lab, "other")
    assert len((await relay.poll(lab.core, attempt, READY)).requests) == 2
    await send(lab, attempt, ResponseFrame(id=started.id, status=200, content_type="text/event-stream", data=b"x"))
    # The worker knows of neither any more.
    (again,) = (await relay.poll(lab.core, attempt, READY)).requests
    assert again.id == untouched.id
    parts = [part async for part in relay.body(lab.core, endpoint, started)]
    assert parts[0] == b"x"
    assert b"lost during the response" in parts[1]
    assert b"DONE" not in parts[1]
    # The process of the model has died before the response.
    await send(lab, attempt, ResponseFrame(id=untouched.id, error="It ended."))
    (again,) = (await relay.poll(lab.core, attempt, READY)).requests
    assert again.id == untouched.id


async def test_a_replica_that_is_gone_gives_its_requests_to_another(lab: Lab) -> None:
    first = await serving(lab)
    endpoint, call = await begun(lab)
    assert (await relay.poll(lab.core, first, READY)).requests
    lab.clock.advance(4)
    second = await serving(lab, "w2")
    waiting = asyncio.create_task(relay.head(lab.core, endpoint, call))
    await asyncio.sleep(0)
    (given,) = (await relay.poll(lab.core, second, READY)).requests
    assert given.id == call.id
    await send(lab, second, ResponseFrame(id=call.id, status=200, end=True))
    assert (await waiting)[0] == 200


async def test_a_response_that_is_not_read_is_paused_and_one_whose_client_left_is_stopped(lab: Lab) -> None:
    attempt = await serving(lab)
    endpoint, call = await begun(lab)
    await relay.poll(lab.core, attempt, READY)
    much = ResponseFrame(id=call.id, status=200, content_type="text/event-stream", data=b"x" * (calls.FULL + 1))
    assert await send(lab, attempt, much) == ((), (call.id,))
    reading = relay.body(lab.core, endpoint, call)
    await anext(reading)
    assert await send(lab, attempt, ResponseFrame(id=call.id, data=b"y")) == ((), ())
    relay.leave(lab.core, endpoint, call)
    found = await relay.poll(lab.core, attempt, RelayPoll(ready=True, held=(call.id,)))
    assert found.gone == (call.id,)
    assert (await send(lab, attempt, ResponseFrame(id=call.id, data=b"z")))[0] == (call.id,)


async def test_rates_and_open_requests_are_limited(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await serving(lab)
    for _ in range(3):
        await begun(lab, "greedy")
    with pytest.raises(TooManyError, match="3 requests per minute") as refused:
        await begun(lab, "greedy")
    assert refused.value.retry_after_s == 20
    await begun(lab, "another")
    lab.clock.advance(20)
    await begun(lab, "greedy")
    monkeypatch.setattr(relay, "MAX_CALLS", 5)
    with pytest.raises(TooManyError, match="too many open requests"):
        await begun(lab, "third")


async def test_a_request_without_a_replica_waits_and_then_says_why(lab: Lab) -> None:
    await lab.submit(SERVE)
    endpoint, call = await begun(lab)
    lab.clock.advance(11)
    with pytest.raises(UnavailableError, match="waits for a worker") as queued:
        await relay.head(lab.core, endpoint, call)
    assert queued.value.retry_after_s == 15


async def test_the_name_of_a_running_endpoint_belongs_to_its_owner(lab: Lab) -> None:
    ada, eve = [await lab.actor(name, "member") for name in ("ada", "eve")]
    wanted = SubmitRequest(document=SERVE)
    await workflows.submit(lab.core, ada, wanted)
    with pytest.raises(ConflictError, match="The endpoint bot belongs to ada"):
        await workflows.submit(lab.core, eve, wanted)
    await workflows.submit(lab.core, ada, wanted)
    await endpoint_views.stop(lab.core, ada, "bot")
    await workflows.submit(lab.core, eve, wanted)
    view = await endpoint_views.get(lab.core, Actor("k", "eve", "viewer"), "bot")
    assert (view.owner, view.state, len(view.replicas)) == ("eve", "queued", 1)
