"""`api` tasks against a real HTTP service: what is sent, what comes back, and what is never reached or said."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.story import until
from tests.fakes.service import Asked, Says, Service, completion, serving
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.executors.api import ApiExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_link import Finish, Offer
from tunefleet.worker.jobs.inline_tasks import run_light

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "workflows" / "api.yaml"
TOKEN = "the-token-of-the-service"
CHAT = {"messages": [{"role": "user", "content": "say: {{prompt}}"}]}


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as made:
        yield made


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "127.0.0.1")


def run(api: dict[str, Any], items: list[str] | None = None, **data: Any) -> Finish:
    spec: dict[str, Any] = {"taskType": "api", "api": api}
    if items is not None:
        spec["data"] = {"type": "list", "items": items, **data}
    offer = Offer(token="t", task_id="task", workflow_id="w", attempt=1, kind="api", name="n", spec=spec)
    return run_light(ApiExecutor(), offer, Secrets({"KEY": TOKEN}))


def test_each_item_is_asked_with_its_own_words_in_every_place(service: Service) -> None:
    api = {
        "url": f"{service.url}/v1/{{{{prompt}}}}/chat",
        "headers": {"X-Item": "<{{prompt}}>", "Authorization": "Bearer ${secret:KEY}"},
        "params": {"q": "{{prompt}}", "n": 1},
        "json": CHAT,
        "concurrency": 2,
        "response": {"include_headers": True},
    }
    items = ['a/b?c "d"', "x", "y", "z"]
    gate = threading.Barrier(2, timeout=60)

    def two_at_a_time(asked: Asked) -> Says:
        gate.wait()
        return completion(asked)

    service.answer = two_at_a_time
    end = run(api, items, metadata=[{"n": number} for number in range(4)])
    assert end.outcome == "completed", end.error
    result = end.result
    assert [each["output"] for each in result["items"]] == [f"SAY: {item}".upper() for item in items]
    assert [each["metadata"]["n"] for each in result["items"]] == [0, 1, 2, 3]
    assert result["usage"] == {"num_requests": 4, "failed": 0, "prompt_tokens": 12, "completion_tokens": 8}
    assert (result["status_code"], result["executor"], result["ok"]) == (200, "api", True)
    assert service.at_once == 2
    odd = next(each for each in service.asked if '"d"' in each.headers["x-item"])
    assert odd.path == "/v1/a%2Fb%3Fc%20%22d%22/chat?q=a%2Fb%3Fc+%22d%22&n=1"
    assert json.loads(odd.body)["messages"][0]["content"] == 'say: a/b?c "d"'
    assert odd.headers["authorization"] == f"Bearer {TOKEN}"
    assert "content-length" in result["items"][0]["headers"]


def test_a_service_without_time_is_asked_again_when_it_wants_and_its_refusal_says_no_secret(service: Service) -> None:
    api = {"url": f"{service.url}/x", "headers": {"K": "${secret:KEY}"}, "json": CHAT, "retries": 2}
    service.answers = [Says(429, "later", {"Retry-After": "0"}), Says(503, "busy", {"Retry-After": "0"})]
    end = run(api, ["hello"])
    assert end.outcome == "completed", end.error
    assert len(service.asked) == 3
    service.answers = [Says(401, f"no such key: {TOKEN}")]
    refused = run(api, ["hello"])
    assert (refused.outcome, refused.reason) == ("failed", TaskReason.BAD_INPUT)
    assert refused.error == "Item 0: 127.0.0.1 answers 401: no such key: ${secret:KEY}."
    assert len(service.asked) == 4, "what another try does not change is not tried"
    service.answers = [Says(503, "busy")] * 3
    busy = run({**api, "retries": 0}, ["hello"])
    assert (busy.outcome, busy.reason) == ("failed", TaskReason.NETWORK)
    kept = run({**api, "retries": 0, "response": {"raise_for_status": False}}, ["hello"])
    assert (kept.outcome, kept.result["ok"], kept.result["status_code"], kept.result["text"]) == (
        "completed", False, 503, "busy",
    )  # fmt: skip


def test_an_item_that_is_refused_has_an_error_and_the_others_keep_their_answers(service: Service) -> None:
    def all_but_two(asked: Asked) -> Says:
        said = json.loads(asked.body)["messages"][0]["content"]
        return {"say: b": Says(422, f"no: {TOKEN}"), "say: c": Says(503, "busy")}.get(said) or completion(asked)

    service.answer = all_but_two
    api = {"url": service.url, "headers": {"K": "${secret:KEY}"}, "json": CHAT}
    end = run(api, ["a", "b", "c", "d"], metadata=[{"n": number} for number in range(4)])
    assert end.outcome == "completed", end.error
    assert (end.result["ok"], end.result["status_code"]) == (False, 503)
    assert [each["output"] for each in end.result["items"]] == ["SAY: A", None, None, "SAY: D"]
    errors = [each.get("error") for each in end.result["items"]]
    assert errors == [
        None, "Item 1: 127.0.0.1 answers 422: no: ${secret:KEY}.", "Item 2: 127.0.0.1 answers 503: busy.", None,
    ]  # fmt: skip
    assert [(each["prompt"], each["metadata"]["n"]) for each in end.result["items"]][1] == ("b", 1)
    assert end.result["usage"] == {"num_requests": 4, "failed": 2, "prompt_tokens": 6, "completion_tokens": 4}
    assert len(service.asked) == 4, "each is asked once"
    none = run(api, ["b", "c"])
    assert (none.outcome, none.reason) == ("failed", TaskReason.NETWORK), "another try may better one of them"
    assert (run(api, ["b", "b"]).reason, run(api, ["c"]).reason) == (TaskReason.BAD_INPUT, TaskReason.NETWORK)


def test_answers_are_cut_and_texts_sent_as_they_are(service: Service) -> None:
    service.answer = lambda asked: Says(body="0123456789" * 1000)
    end = run({"url": service.url, "body": "a {{prompt}} b", "response": {"max_body_bytes": 15}}, ["x\ny"])
    assert (end.result["text"], end.result["items"][0]["truncated"]) == ("012345678901234", True)
    assert end.result["json"] is None
    assert service.asked[0].body == "a x\ny b"
    lines = run({"url": service.url, "headers": {"X": "{{prompt}}"}}, ["x\ny"])
    assert (lines.reason, "line break" in str(lines.error)) == (TaskReason.BAD_INPUT, True)
    form = run({"url": service.url, "data": {"q": "{{prompt}}"}}, ["a&b"])
    assert (form.outcome, service.asked[-1].body) == ("completed", "q=a%26b")


def test_what_may_not_be_reached_is_not_even_through_a_redirect(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers = [Says(302, "", {"Location": "http://169.254.169.254/latest/meta-data"})]
    led = run({"url": service.url, "method": "get"})
    assert led.reason == TaskReason.BAD_INPUT
    assert "metadata service" in str(led.error)
    with serving() as other:
        service.answers = [Says(307, "", {"Location": other.url})]
        posted = run({"url": service.url, "json": {"key": "${secret:KEY}"}})
        assert "its body is not sent to" in str(posted.error)
        service.answers = [Says(302, "", {"Location": f"{other.url}/there"})]
        got = run({"url": service.url, "method": "GET", "headers": {"Authorization": "${secret:KEY}"}})
        assert got.outcome == "failed", "its stand-in cannot read an empty chat"
        assert [asked.path for asked in other.asked] == ["/there"]
        assert "authorization" not in other.asked[0].headers
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "")
    private = run({"url": service.url, "json": {}})
    assert (private.reason, "TUNEFLEET_URL_ALLOW" in str(private.error)) == (TaskReason.BAD_INPUT, True)


def test_the_workers_own_service_gets_its_token_and_nobody_reads_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "")
    assert "TUNEFLEET_API_TASK_URL" in str(run({"json": CHAT}, ["a"]).error)
    monkeypatch.setenv("NEBULA_API_BASE_URL", f"{service.url}/")
    monkeypatch.setenv("NEBULA_API_TOKEN", TOKEN)
    service.answer = lambda asked: Says(body={"you sent": asked.headers})
    end = run({"json": CHAT}, ["a"])
    assert (service.asked[0].path, service.asked[0].headers["authorization"]) == (
        "/v1/chat/completions", f"Bearer {TOKEN}",
    )  # fmt: skip
    assert end.outcome == "completed", end.error
    assert TOKEN not in end.model_dump_json()
    elsewhere = run({"url": f"{service.url}/own", "json": {}})
    assert elsewhere.reason == TaskReason.BAD_INPUT, "the host is the worker's own, not a document's"


@pytest.mark.proof
def test_a_killed_worker_asks_again_and_the_task_ends_well(
    service: Service, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> None:
    environment = {"TUNEFLEET_URL_ALLOW": "127.0.0.1", "TUNEFLEET_WARM_START": "false", "TUNEFLEET_LOST_AFTER_S": "3"}
    held, release = threading.Event(), threading.Event()

    def hold_the_first(asked: Asked) -> Says:
        if not held.is_set():
            held.set()
            release.wait(60)
        return completion(asked)

    service.answer = hold_the_first
    data = tmp_path_factory.mktemp("fleet")
    with (
        LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet,
        Client(fleet.url, fleet.key, patience_s=30) as client,
    ):
        flow = client.submit(EXAMPLE, overrides={"stages.ask.spec.api.url": service.url}).workflow
        ids = {task.name: task.id for task in flow.tasks}
        assert held.wait(60)
        pid = fleet.pid("worker")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: fleet.pid("worker") not in {None, pid}, "another worker")
        task = client.tasks.wait(ids["report"], timeout_s=60)
        release.set()
        assert task.status == "completed", task.error
        assert task.result is not None
        said = [each["output"] for each in task.result["result"]["items"]]
        assert said == ["SAY IT IN CAPITALS: ONE", "SAY IT IN CAPITALS: TWO"]
