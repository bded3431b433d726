"""Server-sent events and long polls: resumable, and gone at once when the server stops."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit, until
from tunefleet.api import launch


@contextmanager
def stream(client: httpx.Client, path: str, **options: Any) -> Iterator[Iterator[dict[str, str]]]:
    with client.stream("GET", path, **options) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield _events(reply.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if not line:
            if "data" in event:
                yield event
            event = {}
        elif name:
            event[name] = value


def test_event_stream_resumes_behind_the_last_id(admin: httpx.Client) -> None:
    first = submit(admin)
    with stream(admin, "/events/stream?after=0") as events:
        seen = next(event for event in events if json.loads(event["data"])["task_id"] == first)
    second = submit(admin)
    with stream(admin, "/events/stream", headers={"Last-Event-ID": seen["id"]}) as events:
        got = []
        for event in events:
            got.append(event)
            body = json.loads(event["data"])
            assert int(event["id"]) == body["id"] > int(seen["id"])
            if body["task_id"] == second:
                break
    ids = [int(event["id"]) for event in got]
    assert ids == sorted(set(ids))
    listed = admin.get("/events", params={"after": seen["id"], "limit": len(ids)}).json()
    assert [event["id"] for event in listed] == ids


def test_event_stream_without_a_position_is_live(admin: httpx.Client) -> None:
    old = submit(admin)
    with stream(admin, "/events/stream") as events:
        new: list[str] = []
        later = threading.Timer(0.3, lambda: new.append(submit(admin)))
        later.start()
        body = json.loads(next(events)["data"])
        # The event is there before the answer is.
        later.join()
    assert body["task_id"] != old
    assert new


def test_stream_ends_with_its_key(admin: httpx.Client, running: Running) -> None:
    made = admin.post("/keys", json={"name": "watcher", "role": "viewer"}).json()
    with running.client(made["secret"]) as watcher, stream(watcher, "/events/stream") as events:
        admin.delete(f"/keys/{made['id']}")
        submit(admin)
        assert list(events) == []


def test_event_stream_is_filtered(admin: httpx.Client) -> None:
    other, mine = submit(admin), submit(admin)
    admin.post(f"/tasks/{mine}/cancel")
    with stream(admin, "/events/stream", params={"after": 0, "task_id": mine, "kinds": "task.cancelled"}) as events:
        body = json.loads(next(events)["data"])
    assert (body["task_id"], body["kind"]) == (mine, "task.cancelled")
    assert other != mine


def test_progress_of_running_tasks_is_in_the_stream(admin: httpx.Client, hand: HandWorker, running: Running) -> None:
    task_id = submit(admin)
    token = hand.take(task_id)
    lines = [
        json.dumps({"seq": 0, "at": time.time(), "type": "launch", "launch": "l1"}),
        json.dumps({"seq": 1, "at": time.time(), "type": "progress", "phase": "training", "step": 7, "max_steps": 9}),
    ]
    with stream(admin, "/events/stream", params={"task_id": task_id}) as events, running.client(token) as attempt:
        attempt.post(f"/tasks/{task_id}/journal", json={"launch": "l1", "from_seq": 0, "lines": lines})
        event = next(event for event in events if event.get("event") == "progress")
    assert json.loads(event["data"])["data"]["step"] == 7
    assert "id" not in event
    hand.finish(token)


def test_log_is_followed_resumed_and_ended(admin: httpx.Client, hand: HandWorker, running: Running) -> None:
    task_id = submit(admin)
    token = hand.take(task_id)
    with running.client(token) as attempt:
        attempt.put(f"/tasks/{task_id}/log?offset=0", content=b"one\n")
        with stream(admin, f"/tasks/{task_id}/log/stream") as events:
            first = next(events)
            assert json.loads(first["data"])["text"] == "one\n"
            attempt.put(f"/tasks/{task_id}/log?offset=4", content=b"two\r\n")
            assert json.loads(next(events)["data"])["text"] == "two\r\n"
        gap = attempt.put(f"/tasks/{task_id}/log?offset=100", content=b"x")
        assert is_problem(gap, 409, "offset_conflict")["cursor"] == 9
    later = threading.Timer(0.3, hand.finish, [token])
    later.start()
    with stream(admin, f"/tasks/{task_id}/log/stream", headers={"Last-Event-ID": first["id"]}) as events:
        rest = list(events)
    later.join()
    assert "".join(json.loads(event["data"])["text"] for event in rest if event["event"] == "log") == "two\r\n"
    assert rest[-1]["event"] == "eos"
    is_problem(admin.get("/tasks/task-ffffffffffff/log/stream"), 404, "not_found")


def test_journal_overlap_is_trimmed_and_a_gap_is_refused(
    admin: httpx.Client, hand: HandWorker, running: Running
) -> None:
    task_id = submit(admin)
    token = hand.take(task_id)
    lines = [json.dumps({"seq": 0, "at": 1.0, "type": "launch", "launch": "l1"})]
    lines += [
        json.dumps({"seq": n, "at": 1.0, "type": "metric", "step": n, "values": {"loss": 1 / n}}) for n in range(1, 4)
    ]
    with running.client(token) as attempt:

        def send(from_seq: int, to: int) -> httpx.Response:
            body = {"launch": "l1", "from_seq": from_seq, "lines": lines[from_seq:to]}
            return attempt.post(f"/tasks/{task_id}/journal", json=body)

        assert send(0, 3).json() == {"cursor": 3}
        assert (
            is_problem(
                attempt.post(f"/tasks/{task_id}/journal", json={"launch": "l1", "from_seq": 9, "lines": ["{}"]}),
                409,
                "offset_conflict",
            )["cursor"]
            == 3
        )
        assert send(1, 4).json() == {"cursor": 4}
    view = admin.get(f"/tasks/{task_id}/metrics", params={"names": "loss"}).json()
    assert [point["step"] for point in view["points"]] == [1, 2, 3]
    hand.finish(token)


def test_stop_releases_polls_and_streams(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 600)  # nothing is cut off: it ends by itself
    running = start(tmp_path / "data", lost_after_s=600)
    ended: set[str] = set()
    open_ = threading.Semaphore(0)
    with running.client(running.admin_key) as admin, running.client(running.worker_key) as worker:
        hand = HandWorker(worker, "poller")
        hand.register()
        task_id = submit(admin)

        def poll() -> None:
            hand.exchange(wait_s=100)
            ended.add("poll")

        def follow(path: str) -> None:
            with running.client(running.admin_key) as client, stream(client, path) as events:
                open_.release()
                list(events)
            ended.add(path)

        threads = [threading.Thread(target=poll)]
        for path in ["/events/stream", f"/tasks/{task_id}/log/stream"]:
            threads.append(threading.Thread(target=follow, args=[path]))
        for thread in threads:
            thread.start()
        assert all(open_.acquire(timeout=60) for _ in range(2))
        until(lambda: running.core.signals._waiters.get("worker:poller"))
        assert not ended
        running.stop()
        for thread in threads:
            thread.join(30)
    running.core.close()
    assert len(ended) == 3
