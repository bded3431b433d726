from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.unit.client.fake import URL, FakeServer, problem
from tunefleet.client import flows
from tunefleet.client.call import Emit, Flow, Pause, Stream, ask, work
from tunefleet.client.connection import Connection
from tunefleet.client.routes import workflow_routes
from tunefleet.client.transport import Policy, Transport, _options
from tunefleet.errors import (
    AuthError,
    ConflictError,
    NotFoundError,
    OffsetConflict,
    SpecError,
    TooLargeError,
    UnreachableError,
)
from tunefleet.schemas.api import ServerInfo, TaskView

INFO = {"version": "1", "authenticated": True, "role": "admin", "owner": "admin"}


def info() -> httpx.Response:
    return httpx.Response(200, json=INFO)


class Clock:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("url", "refused_s", "least_s", "most_s"),
    [
        ("http://127.0.0.1:9", 1.0, 0.0, 1.0),
        ("http://127.0.0.1:9", None, 4.0, 6.0),
        (URL, 1.0, 4.0, 6.0),
    ],
)
def test_a_server_of_this_machine_that_is_not_there_is_soon_given_up(
    url: str, refused_s: float | None, least_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("tenacity.time", clock)
    monkeypatch.setattr("tenacity.nap.time", clock)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    policy = Policy(patience_s=4.0, refused_s=refused_s)
    transport = Transport(Connection(url, "tf_key"), policy, network=httpx.MockTransport(refuse))
    with pytest.raises(UnreachableError, match="No server responds"):
        transport.run(workflow_routes.info())
    assert least_s <= clock.now_s <= most_s


def test_a_call_sends_the_key_and_returns_a_model() -> None:
    server = FakeServer(answers=[info()])
    assert server.sync().run(workflow_routes.info()) == ServerInfo(**INFO)
    request = server.requests[0]
    assert str(request.url) == f"{URL}/api/v1/info"
    assert request.headers["Authorization"] == "Bearer tf_key"


async def test_the_asynchronous_client_does_the_same() -> None:
    server = FakeServer(answers=[info()])
    transport = server.asynchronous()
    assert (await transport.run(workflow_routes.info())).owner == "admin"
    await transport.close()


def test_queries_leave_out_what_is_not_given_and_ids_are_escaped() -> None:
    server = FakeServer(answers=[httpx.Response(200, json={"items": []})])
    server.sync().run(workflow_routes.list_tasks(status="running", limit=5))
    assert dict(server.requests[0].url.params) == {"status": "running", "limit": "5"}
    assert workflow_routes.get_task("../keys?x=1").path == "/tasks/..%2Fkeys%3Fx%3D1"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("not_found", 404, NotFoundError),
        ("unauthenticated", 401, AuthError),
        ("conflict", 409, ConflictError),
        ("too_large", 413, TooLargeError),
        ("a_code_of_tomorrow", 409, ConflictError),
    ],
)
def test_a_problem_becomes_the_servers_exception(code: str, status: int, kind: type[Exception]) -> None:
    class Narrower(kind):  # type: ignore[valid-type, misc] - as the server has some, with the code of their parent
        pass

    server = FakeServer(answers=[problem(status, code, "It went wrong.", hint="Do this.")])
    with pytest.raises(kind) as caught:
        server.sync().run(workflow_routes.get_task("task-1"))
    assert type(caught.value) is kind
    assert str(caught.value) == "It went wrong. Do this."


def test_a_spec_error_keeps_its_faults_and_a_conflict_its_cursor() -> None:
    fault = {"path": "spec.x", "message": "unknown", "line": 3, "column": 5, "hint": "did you mean y?"}
    server = FakeServer(answers=[problem(422, "spec_invalid", "1 fault", faults=[fault])])
    with pytest.raises(SpecError) as caught:
        server.sync().run(workflow_routes.validate("x"))
    assert (caught.value.faults[0].line, caught.value.faults[0].hint) == (3, "did you mean y?")
    server = FakeServer(answers=[problem(409, "offset_conflict", "gap", cursor=7)])
    with pytest.raises(OffsetConflict) as conflict:
        server.sync().run(workflow_routes.put_log("task-1", 9, b"x"))
    assert conflict.value.cursor == 7


def test_an_answer_that_is_not_ours_says_so() -> None:
    server = FakeServer(answers=[httpx.Response(404, text="<html>nginx</html>")])
    with pytest.raises(UnreachableError, match="not in Tunefleet's format"):
        server.sync().run(workflow_routes.info())
    server = FakeServer(answers=[httpx.Response(200, text="<html>hello</html>")])
    with pytest.raises(UnreachableError, match="cannot parse"):
        server.sync().run(workflow_routes.info())


def test_what_may_be_repeated_is_tried_again() -> None:
    server = FakeServer(answers=[httpx.ReadError("gone"), problem(503, "unreachable", "busy"), info()])
    assert server.sync(Policy(patience_s=5)).run(workflow_routes.info()).version == "1"
    assert len(server.requests) == 3


def test_what_must_not_be_repeated_is_sent_once() -> None:
    server = FakeServer(answers=[httpx.ReadError("gone"), info()])
    with pytest.raises(UnreachableError, match="was interrupted"):
        server.sync(Policy(patience_s=5)).run(workflow_routes.retry_task("task-1"))
    assert len(server.requests) == 1


async def test_both_are_patient_for_as_long_as_they_are_told() -> None:
    down = [httpx.ConnectError("refused")] * 20
    with pytest.raises(UnreachableError, match=r"No server responds at http://server\.test"):
        FakeServer(answers=list(down)).sync(Policy(patience_s=0)).run(workflow_routes.info())
    server = FakeServer(answers=list(down))
    transport = server.asynchronous(Policy(patience_s=0.2))
    with pytest.raises(UnreachableError):
        await transport.run(workflow_routes.info())
    await transport.close()
    assert len(server.requests) > 1
    with pytest.raises(UnreachableError, match="in time"):
        FakeServer(answers=[httpx.ReadTimeout("slow")]).sync(Policy(patience_s=0)).run(workflow_routes.info())


def counting(log: list[str]) -> Flow[str]:
    try:
        first = yield from ask(workflow_routes.info())
        yield Pause(0.0)
        second = yield from work(lambda: "worked")
        try:
            yield from ask(workflow_routes.get_task("none"))
        except NotFoundError:
            log.append("caught")
        return f"{first.version} {second}"
    finally:
        log.append("closed")


async def test_a_flow_runs_alike_in_both_and_may_catch_what_a_step_raises() -> None:
    for _ in range(2):
        log: list[str] = []
        answers = [info(), problem(404, "not_found", "none")]
        assert FakeServer(answers=list(answers)).sync().run(counting(log)) == "1 worked"
        assert log == ["caught", "closed"]
    log = []
    transport = FakeServer(answers=[info(), problem(404, "not_found", "none")]).asynchronous()
    assert await transport.run(counting(log)) == "1 worked"
    assert log == ["caught", "closed"]
    await transport.close()


def test_a_flow_is_closed_when_a_step_fails() -> None:
    log: list[str] = []
    with pytest.raises(AuthError):
        FakeServer(answers=[problem(401, "unauthenticated", "no")]).sync().run(counting(log))
    assert log == ["closed"]


def page(numbers: range, cursor: str | None) -> httpx.Response:
    items = [
        {
            "id": f"task-{n}",
            "workflow_id": "wf-1",
            "name": "n",
            "kind": "echo",
            "status": "queued",
            "owner": "a",
            "created_at": "2026-01-01T00:00:00Z",
        }
        for n in numbers
    ]
    return httpx.Response(200, json={"items": items, "next_cursor": cursor})


async def test_iteration_walks_all_pages_and_stops_early_if_nobody_asks() -> None:
    server = FakeServer(answers=[page(range(2), "c1"), page(range(2, 3), None)])
    found: Iterator[TaskView] = server.sync().iterate(flows.iterate_tasks())
    assert [task.id for task in found] == ["task-0", "task-1", "task-2"]
    assert server.requests[1].url.params["cursor"] == "c1"
    server = FakeServer(answers=[page(range(2), "c1")])
    assert next(server.sync().iterate(flows.iterate_tasks())).id == "task-0"
    server = FakeServer(answers=[page(range(2), "c1"), page(range(2, 3), None)])
    transport = server.asynchronous()
    assert [task.id async for task in transport.iterate(flows.iterate_tasks())] == ["task-0", "task-1", "task-2"]
    await transport.close()


def test_an_empty_stream_yields_nothing() -> None:
    def nothing_at_all() -> Stream[int]:
        yield from ()

    def one() -> Stream[int]:
        yield Emit(1)

    assert list(FakeServer().sync().iterate(nothing_at_all())) == []
    assert list(FakeServer().sync().iterate(one())) == [1]


def test_a_proxy_is_not_used_for_this_machine_and_https_checks_certificates() -> None:
    here = _options(Connection("http://127.0.0.1:8000", None), Policy())
    there = _options(Connection("https://gpu-box", "k"), Policy())
    assert (here["trust_env"], there["trust_env"]) == (False, True)
    assert there["verify"].check_hostname
    assert there["verify"].get_ca_certs() or there["verify"].cert_store_stats()["x509_ca"] >= 0


def test_a_transport_closes() -> None:
    transport: Transport = FakeServer().sync()
    transport.close()
    with pytest.raises(RuntimeError):
        transport.run(workflow_routes.info())


class Lines(httpx.SyncByteStream):
    """A stream of server-sent events that breaks at its end, if it is to."""

    def __init__(self, *events: str, breaks: bool = False) -> None:
        self._events = events
        self._breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        for event in self._events:
            yield f"{event}\n\n".encode()
        if self._breaks:
            raise httpx.ReadError("the server was killed")


def log_event(text: str, end: int) -> str:
    return f"event: log\nid: {end}\ndata: {json.dumps({'text': text})}"


def test_a_followed_log_goes_on_after_the_server_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server = FakeServer(
        answers=[
            httpx.Response(200, stream=Lines(": ping", log_event("one\n", 4), breaks=True)),
            httpx.ConnectError("refused"),
            httpx.Response(200, stream=Lines(log_event("two\n", 8))),
            httpx.Response(200, stream=Lines("event: eos\ndata: {}")),
        ]
    )
    assert list(server.sync(Policy(patience_s=5)).iterate(flows.follow_log("task-1"))) == ["one\n", "two\n"]
    assert [request.url.params["offset"] for request in server.requests] == ["0", "4", "4", "8"]


def test_followed_events_go_on_behind_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    told = [f'id: {n}\ndata: {{"id": {n}, "at": "2026-01-01T00:00:00Z", "kind": "task.queued"}}' for n in (5, 6)]
    server = FakeServer(
        answers=[
            httpx.Response(200, stream=Lines(told[0], breaks=True)),
            httpx.Response(200, stream=Lines(told[1])),
            problem(401, "unauthenticated", "revoked"),
        ]
    )
    happened = server.sync().iterate(flows.follow_events(after=4, kinds=["task.queued"]))
    assert [next(happened).id, next(happened).id] == [5, 6]
    with pytest.raises(AuthError):
        next(happened)
    assert [request.headers["Last-Event-ID"] for request in server.requests] == ["4", "5", "6"]


def test_waiting_outlasts_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    body = {
        "id": "task-1",
        "workflow_id": "wf-1",
        "name": "n",
        "kind": "echo",
        "status": "completed",
        "owner": "a",
        "created_at": "2026-01-01T00:00:00Z",
        "spec": {},
    }
    server = FakeServer(answers=[httpx.ConnectError("refused"), httpx.Response(200, json=body)])
    assert server.sync(Policy(patience_s=0)).run(flows.wait_for_task("task-1")).status == "completed"
    with pytest.raises(UnreachableError):
        FakeServer(answers=[httpx.ConnectError("refused")]).sync(Policy(patience_s=0)).run(
            flows.wait_for_task("task-1", timeout_s=-1)
        )
