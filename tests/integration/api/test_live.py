"""The page's stream: everything in one connection, together, and without a gap after a cut."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit
from tests.integration.api.test_campaigns import Engine, apply
from tunefleet.api import live_stream
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.telemetry.live_feed import Watched

Message = tuple[str, str, dict[str, Any]]
"""Kind, id and data."""


@contextmanager
def watching(client: httpx.Client, last: str | None = None, **params: Any) -> Iterator[Iterator[Message]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with client.stream("GET", "/live", params=params, headers=headers) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield _messages(reply.iter_lines())


def _messages(lines: Iterator[str]) -> Iterator[Message]:
    told: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if not line:
            if "data" in told:
                yield told["event"], told["id"], json.loads(told["data"])
            told = {}
        elif name:
            told[name] = value


def _first(messages: Iterator[Message], kind: str) -> Message:
    return next(message for message in messages if message[0] == kind)


class Job:
    """A running task whose journal a test writes."""

    def __init__(self, admin: httpx.Client, hand: HandWorker, task_id: str | None = None, token: str = "") -> None:
        self.id = task_id or submit(admin)
        self.token = token or hand.take(self.id)
        self._hand = hand
        self._client = admin
        self._seq: dict[str, int] = {}

    def tell(self, launch: str, *records: dict[str, Any]) -> None:
        start = self._seq.get(launch, 0)
        lines = [json.dumps({"seq": start + n, "at": time.time(), **each}) for n, each in enumerate(records)]
        body = {"launch": launch, "from_seq": start, "lines": lines}
        headers = {"Authorization": f"Bearer {self.token}"}
        reply = self._client.post(f"/tasks/{self.id}/journal", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        self._seq[launch] = start + len(records)

    def finish(self) -> None:
        self._hand.finish(self.token)


@pytest.fixture
def job(admin: httpx.Client, hand: HandWorker) -> Iterator[Job]:
    job = Job(admin, hand)
    yield job
    job.finish()


def _launch(name: str, from_step: int = 0) -> dict[str, Any]:
    return {"type": "launch", "launch": name, "from_step": from_step}


def _point(step: int, **values: float) -> dict[str, Any]:
    return {"type": "metric", "step": step, "values": values or {"loss": 1.0 / step}}


def test_no_point_and_no_event_is_missed_or_doubled_however_often_the_connection_is_cut(
    admin: httpx.Client, job: Job
) -> None:
    chance = random.Random(7)
    total = 400
    read = threading.Semaphore(0)

    def write() -> None:
        job.tell("l1", _launch("l1"))
        for step in range(1, total + 1, 20):
            assert read.acquire(timeout=60)  # what is written while nobody is connected comes later
            job.tell("l1", *(_point(each) for each in range(step, step + 20)))
            if step % 60 == 1:
                submit(admin)
        job.tell("l2", _launch("l2", 200), *(_point(each) for each in range(201, 301)))
        job.tell("l1", {"type": "event", "message": "the end"})

    with watching(admin, points=job.id) as messages:
        hello = next(messages)
    assert (hello[0], hello[2]["missed"]) == ("hello", False)
    last = hello[1]
    began_after = int(last.partition(";")[0])
    writer = threading.Thread(target=write)
    writer.start()
    points: list[tuple[int, int]] = []
    told: list[int] = []
    resumed: list[dict[str, int]] = []
    cuts = 0
    ended = False
    while not ended or len(points) < total + 100:
        room = chance.randint(1, 3)
        with watching(admin, last, points=job.id) as messages:
            for message in messages:
                kind, last, data = message
                if kind == "points":
                    points += [(point["launch"], point["step"]) for point in data["points"]]
                    resumed += data["resumed"]
                elif kind == "events":
                    told += [event["id"] for event in data["events"]]
                    ended = ended or any(event["data"].get("message") == "the end" for event in data["events"])
                room -= kind != "hello"
                read.release()
                if room <= 0 or (ended and len(points) >= total + 100):
                    break
        cuts += 1
    writer.join()
    assert cuts >= 5
    assert points == [(1, step) for step in range(1, total + 1)] + [(2, step) for step in range(201, 301)]
    assert resumed == [{"launch": 2, "from_step": 200}]
    listed = admin.get("/events", params={"after": began_after, "limit": 1000}).json()
    assert told == [event["id"] for event in listed if event["id"] <= told[-1]]


def test_a_page_goes_on_where_it_was_when_the_server_comes_back(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start(tmp_path / "data", lost_after_s=600)
    try:
        with running.client(running.admin_key) as admin, running.client(running.worker_key) as worker:
            hand = HandWorker(worker, "by-hand")
            hand.register()
            job = Job(admin, hand)
            job.tell("l1", _launch("l1"), _point(1))
            with watching(admin, points=job.id) as messages:
                _, last, _ = next(messages)
                job.tell("l1", _point(2))
                _, last, data = _first(messages, "points")
                assert [point["step"] for point in data["points"]] == [2]
                job.tell("l1", _point(3))
    finally:
        running.stop()
        running.core.close()
    running = start(tmp_path / "data", lost_after_s=600)
    try:
        with running.client(running.admin_key) as admin:
            later = submit(admin)
            with watching(admin, after=last, points=job.id) as messages:
                found = [next(messages) for _ in range(3)]
        assert found[0][0] == "hello"
        assert not found[0][2]["missed"]
        assert any(event["task_id"] == later for event in found[1][2]["events"])
        assert [point["step"] for point in found[2][2]["points"]] == [3]
    finally:
        running.stop()
        running.core.close()


def test_a_hundred_running_tasks_are_one_message(running: Running, admin: httpx.Client, hand: HandWorker) -> None:
    before = int(admin.get("/events", params={"limit": 1000}).json()[-1]["id"])
    waiting = {submit(admin) for _ in range(100)}
    jobs: list[Job] = []
    while len(jobs) < len(waiting):
        offers = hand.exchange(wait_s=1.0, want={"light": hand.slots})["offers"]
        new = {offer["token"]: offer["task_id"] for offer in offers if offer["task_id"] in waiting}
        accepted = hand.exchange(accepts=list(new))["accepted"]
        hand.holding += accepted
        jobs += [Job(admin, hand, new[token], token) for token in accepted]
    for number, job in enumerate(jobs):
        progress = {"type": "progress", "phase": "training", "step": number + 1, "max_steps": 200, "eta_s": 5.0}
        job.tell("l1", _launch("l1"), _point(number + 1, loss=float(number)), progress)
    running.core.state(Watched).clear()  # what others were shown a moment ago is shown again
    with watching(admin, after=str(before)) as messages:
        _, _, data = _first(messages, "progress")
        mine = {job.id: number for number, job in enumerate(jobs)}
        found = {each["task_id"]: each for each in data["tasks"]}
        assert set(mine) <= set(found)
        for task_id, number in mine.items():
            assert found[task_id]["progress"]["step"] == number + 1
            assert found[task_id]["loss"] == [number + 1, float(number)]
        jobs[0].tell("l1", {"type": "progress", "phase": "training", "step": 99, "max_steps": 200})
        _, _, data = _first(messages, "progress")
        assert [each["task_id"] for each in data["tasks"]] == [jobs[0].id]  # what stands still is not said again
    with watching(admin, after=str(before)) as messages:
        _, _, data = _first(messages, "events")
        assert len(data["events"]) > 300  # submitted, offered, started, of each
    ends = [{"token": job.token, "outcome": "completed", "reason": "finished", "result": {}} for job in jobs]
    assert len(hand.exchange(finishes=ends)["finished"]) == len(jobs)
    hand.holding = [token for token in hand.holding if token not in {job.token for job in jobs}]


def test_loads_of_workers_come_when_they_are_told(admin: httpx.Client, hand: HandWorker) -> None:
    load = {"memory_free_bytes": 123, "disk_free_bytes": 456, "load_1m": 0.5}
    hand.exchange(load=load)
    with watching(admin) as messages:
        _, _, data = _first(messages, "loads")
        (mine,) = [each for each in data["workers"] if each["worker_id"] == "by-hand"]
        assert mine["load"]["memory_free_bytes"] == 123
        hand.exchange(load={**load, "memory_free_bytes": 124})
        _, _, data = _first(messages, "loads")
        assert [each["load"]["memory_free_bytes"] for each in data["workers"]] == [124]


def test_who_has_missed_too_much_reads_everything_anew(admin: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_stream, "FAR", 2)
    for _ in range(3):
        submit(admin)
    newest = None
    for place in ("0", str(10**17)):  # far behind, and of another database
        with watching(admin, place) as messages:
            kind, newest, data = next(messages)
        assert (kind, data["missed"]) == ("hello", True)
    with watching(admin, newest) as messages:
        assert next(messages)[2]["missed"] is False


def test_an_id_of_no_task_is_named_and_ends_nothing(admin: httpx.Client, job: Job) -> None:
    submit(admin)  # now several begin with "task-"
    for number, unknown in enumerate((["task-ffffffffffff"], ["none"], ["x" * 500], ["none", "task-"])):
        with watching(admin, points=",".join([*unknown, job.id])) as messages:
            kind, _, data = next(messages)
            assert (kind, data["unknown"]) == ("hello", unknown)
            job.tell(f"l{number}", _point(1))
            assert _first(messages, "points")[2]["task_id"] == job.id


def test_what_is_no_place_or_too_many_tasks_is_refused(running: Running, admin: httpx.Client, job: Job) -> None:
    for place in ("x", "1;task=a.b", "-1", "1;task=1.٣", "9" * 30):
        is_problem(admin.get("/live", params={"after": place}), 422, "input_invalid")
    is_problem(admin.get("/live", params={"points": ",".join([job.id] * 9)}), 422, "input_invalid")
    with running.client(running.worker_key) as worker, running.client(job.token) as attempt:
        is_problem(worker.get("/live"), 403, "forbidden")
        is_problem(attempt.get("/live"), 403, "forbidden")


def test_a_key_has_so_many_streams_and_gets_the_room_of_a_closed_one_back(
    as_role: Callable[[str], httpx.Client], admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "MOST_STREAMS", 2)
    client = as_role("viewer")
    with watching(client) as first:
        next(first)
        with watching(client) as second:
            next(second)
            with client.stream("GET", "/live") as refused:
                assert refused.status_code == 429
                refused.read()
                is_problem(refused, 429, "too_many")
                assert int(refused.headers["Retry-After"]) > 0
            with watching(as_role("viewer")) as other:
                assert next(other)[0] == "hello"
        deadline = time.monotonic() + 120
        # The server learns that a stream was closed when it looks; there is news for it to send.
        while submit(admin) and not _opens(client):
            assert time.monotonic() < deadline, "the room of a closed stream stays taken"


def _opens(client: httpx.Client) -> bool:
    with client.stream("GET", "/live") as reply:
        return reply.status_code == 200


def test_it_ends_when_its_session_does(running: Running, admin: httpx.Client) -> None:
    own = {"Sec-Fetch-Site": "same-origin"}
    with running.client(headers=own) as browser:
        assert browser.post("/session", json={"key": running.admin_key}).status_code == 201
        with watching(browser) as messages:
            assert next(messages)[0] == "hello"
            assert browser.delete("/session").status_code == 204
            submit(admin)
            # What was on its way before the session ended may come.
            assert "events" not in [kind for kind, _, _ in messages]


def test_what_a_campaign_does_comes_too(running: Running, admin: httpx.Client) -> None:
    engine, id_ = Engine(running), apply(admin, "moving")
    state = engine.to(id_, StepName.MERGE)
    assert state is not None
    with watching(admin) as messages:
        (told,) = [each for each in _first(messages, "campaigns")[2]["cycles"] if each["campaign_id"] == id_]
        assert (told["cycle"], told["step"], told["activity"]) == (0, "merge", None)
        asyncio.run(engine.repository.report(state, Activity("merging", 40, 80, "MiB", "task-1")))
        (told,) = _first(messages, "campaigns")[2]["cycles"]
        assert (told["campaign_id"], told["activity"]["done"], told["activity"]["total"]) == (id_, 40, 80)
