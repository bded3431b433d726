"""Agents that poll: one of two gets a job, wishes reach a held poll, a lost lease frees what it held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hostile import NAMES
from tests.integration.api.support import Running, until
from tests.integration.api.training import CAPABILITIES, HandAgent, agent, client, close_clients, train

Start = Callable[..., Running]


@pytest.fixture
def agents(running: Running) -> Callable[..., HandAgent]:
    def make(name: str, key: str | None = None, **how: Any) -> HandAgent:
        return agent(running, key or running.worker_key, name, **how)

    return make


@pytest.fixture
def person(running: Running) -> httpx.Client:
    return client(running, running.admin_key)


@pytest.fixture(autouse=True)
def _clean(admin: httpx.Client) -> Iterator[None]:
    yield
    close_clients()
    for task in admin.get("/tasks", params={"limit": 1000}).json()["items"]:
        if task["finished_at"] is None:
            admin.post(f"/tasks/{task['id']}/cancel")


def status(person: httpx.Client, job_id: str) -> str:
    return str(person.get(f"/local/{job_id}/status").json()["status"])


def in_background(action: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(action()), daemon=True)
    thread.start()
    return thread, found


def holds(running: Running, agent_id: str) -> None:
    """Wait until an agent's poll is held."""
    until(lambda: running.core.signals._waiters.get(f"worker:{agent_id}"))


def test_first_of_the_queue_is_polled_in_both_spellings_and_claimed_once(
    agents: Callable[..., HandAgent], admin: httpx.Client, person: httpx.Client
) -> None:
    first, second = train(admin, "first"), train(admin, "second")
    urgent = train(admin, "urgent", "  priority: 5")
    one, two = agents("1"), agents("2")
    assert one.poll()["job"]["id"] == two.poll()["job"]["id"] == urgent
    assert one.claim(urgent).status_code == 200
    job = two.poll()["job"]
    assert job["id"] == first
    config = job["config"]
    assert config["training"]["batch_size"] == config["training"]["per_device_train_batch_size"] == 2
    assert config["training"]["lora_config"]["lora_alpha"] == config["lora"]["alpha"]
    assert config["data"]["max_seq_length"] == 1024
    assert job["total_steps"] == job["spec"]["training"]["max_steps"] == 4
    assert job["dataset_path"] == "builtin:gsm8k"

    gate = threading.Barrier(2)

    def race(who: HandAgent) -> httpx.Response:
        gate.wait()
        return who.claim(first)

    runs = [in_background(lambda who=who: race(who)) for who in (one, two)]  # type: ignore[misc]
    for thread, _ in runs:
        thread.join(60)
    replies = sorted((found[0] for _, found in runs), key=lambda reply: reply.status_code)
    assert [reply.status_code for reply in replies] == [200, 409]
    assert replies[1].json()["code"] == "ALREADY_CLAIMED"
    assert replies[1].json()["error"]
    assert status(person, first) == "running"
    # A claim whose answer was lost is said again, and answered with the same token.
    again = [who.claim(first) for who in (one, two)]
    assert {reply.json().get("job_token") for reply in again} == {replies[0].json()["job_token"], None}
    assert one.claim("no-such-job").json()["code"] == "JOB_NOT_FOUND"
    assert one.claim("no-such-job").status_code == 404
    admin.post(f"/tasks/{second}/cancel")
    assert one.claim(second).json()["code"] == "INVALID_STATUS"


def test_held_poll_is_woken_by_a_submit_and_by_each_wish(
    running: Running, agents: Callable[..., HandAgent], admin: httpx.Client, person: httpx.Client
) -> None:
    lab = agents("3")
    agent_id = lab.http.headers["X-Agent-ID"]

    def held(act: Callable[[], Any], want: int = 0) -> dict[str, Any]:
        # The poll would be held for ten seconds and longer, and is asserted to end by what is done meanwhile.
        thread, found = in_background(lambda: lab.poll(wait_s=60, want=want))
        holds(running, agent_id)
        act()
        thread.join(30)
        assert found, "the poll was not woken"
        return dict(found[0])

    made: list[str] = []
    assert held(lambda: made.append(train(admin)), want=1)["job"]["id"] == made[0]
    job_id = made[0]
    job = lab.take(job_id)

    def one_command(act: Callable[[], httpx.Response]) -> dict[str, Any]:
        def checked() -> None:
            reply = act()
            assert reply.status_code == 200, reply.text

        (command,) = held(checked)["commands"]
        assert command["job_id"] == job_id
        return dict(command)

    command = one_command(lambda: person.patch(f"/local/{job_id}/update-params", json={"learning_rate": 1e-5}))
    assert (command["command"], command["data"]) == ("set", {"learning_rate": 1e-5})
    done = {"command_id": command["command_id"], "state": "applied", "step": 2}
    assert lab.beat(job_id, outcomes=[done])["outcomes"] == [command["command_id"]]
    assert admin.get(f"/tasks/{job_id}/commands/{command['command_id']}").json()["state"] == "applied"

    command = one_command(lambda: person.post(f"/local/{job_id}/control", json={"action": "pause"}))
    assert command["command"] == "pause"
    # It is repeated until the agent says that it has heard it.
    assert lab.beat(job_id)["commands"][0]["command_id"] == command["command_id"]
    lab.beat(job_id, outcomes=[{"command_id": command["command_id"], "state": "acknowledged"}])
    assert lab.beat(job_id)["commands"] == []
    assert job.patch(f"/local/{job_id}/status", json={"status": "paused", "step": 2}).status_code == 200
    assert status(person, job_id) == "paused"
    paused = admin.get(f"/tasks/{job_id}/commands/{command['command_id']}").json()
    assert (paused["state"], paused["step"]) == ("durable", 2)
    assert lab.beat(job_id)["drop"] == []

    command = one_command(lambda: person.post(f"/local/{job_id}/control", json={"action": "resume"}))
    assert command["command"] == "resume"
    lab.beat(job_id, outcomes=[{"command_id": command["command_id"], "state": "applied"}])
    assert lab.beat(job_id)["commands"] == []
    assert job.patch(f"/local/{job_id}/status", json={"status": "running"}).status_code == 200
    assert status(person, job_id) == "running"
    assert lab.beat(job_id)["commands"] == []

    command = one_command(lambda: person.post(f"/local/{job_id}/control", json={"action": "cancel"}))
    assert command["command"] == "cancel"
    assert job.patch(f"/local/{job_id}/status", json={"status": "cancelled"}).status_code == 200
    assert admin.get(f"/tasks/{job_id}").json()["reason"] == "cancelled_by_user"


def test_agent_gets_what_it_may_have_and_can_run(
    agents: Callable[..., HandAgent], admin: httpx.Client, running: Running
) -> None:
    secret = admin.post("/keys", json={"name": "alice", "role": "worker", "owner": "alice"}).json()["secret"]
    hers, plain = agents("4", secret), agents("5", leased=False)
    job_id = train(admin, "big", "  resources: {hardware: {cpu: 3}}")
    assert hers.poll()["job"] is None
    assert hers.claim(job_id).json()["code"] == "ACCESS_DENIED"
    assert hers.claim(job_id).status_code == 403
    # Of a machine that says nothing of itself nothing is known.
    assert plain.poll()["job"] is None
    assert plain.claim(job_id).json()["code"] == "INVALID_STATUS"
    assert agents("6").poll()["job"]["id"] == job_id
    assert agents("6").poll(want=0)["job"] is None
    stolen = agent(running, secret, "6", leased=False)
    assert stolen.http.get("/agent/poll").status_code == 403
    bad = client(running, running.worker_key)
    assert bad.get("/agent/poll").status_code == 400
    assert bad.get("/agent/poll", headers={"X-Agent-ID": "short"}).json()["code"] == "REQUEST_INVALID"
    person = client(running, running.admin_key)
    listed = {row["agent_id"]: row for row in person.get("/agents").json()["agents"]}
    assert listed[plain.http.headers["X-Agent-ID"]]["has_lease"] is False
    assert listed[hers.http.headers["X-Agent-ID"]]["user_id"] == "alice"
    agent_id = hers.http.headers["X-Agent-ID"]
    assert person.get(f"/agents/{agent_id}").json()["agent"]["total_jobs"] == 0
    assert person.delete(f"/agents/{agent_id}").json()["success"] is True
    assert person.get(f"/agents/{agent_id}").status_code == 404


def test_agent_is_told_the_fixed_verbs_only(agents: Callable[..., HandAgent], admin: httpx.Client) -> None:
    lab, plain = agents("11"), agents("12", leased=False)
    plain.poll()
    where = f"/workers/{lab.http.headers['X-Agent-ID']}/commands"
    assert admin.post(where, json={"command": "sh -c id"}).status_code == 422
    made = admin.post(where, json={"command": "collect-diagnostics", "data": {"logs": 3}})
    assert made.status_code == 202, made.text
    (command,) = lab.poll(want=0)["commands"]
    assert (command["command"], command["data"], command["job_id"]) == ("collect-diagnostics", {"logs": 3}, None)
    done = {"command_id": command["command_id"], "state": "durable", "data": {"disk": "full"}}
    lab.beat(outcomes=[done])
    found = admin.get(f"{where}/{command['command_id']}").json()
    assert (found["state"], found["result"]) == ("durable", {"disk": "full"})
    assert lab.poll(want=0)["commands"] == []
    deaf = f"/workers/{plain.http.headers['X-Agent-ID']}/commands"
    assert admin.post(deaf, json={"command": "restart"}).status_code == 409


def test_nothing_is_pushed_to_an_agent_and_a_worker_keeps_its_id(
    agents: Callable[..., HandAgent], admin: httpx.Client, worker: httpx.Client, running: Running
) -> None:
    lab = agents("7")
    lab.poll()
    job_id = train(admin)
    time.sleep(0.3)
    assert admin.get(f"/tasks/{job_id}").json()["status"] == "queued"
    why = {each["worker_id"]: each["reason"] for each in admin.get(f"/tasks/{job_id}/why").json()["workers"]}
    assert why[lab.http.headers["X-Agent-ID"]] == "pulls the tasks of its key's owner when it polls"
    body = {
        "worker_id": "a-real-worker", "session": "s", "state_id": "t", "holding": [], "capabilities": CAPABILITIES,
    }  # fmt: skip
    assert worker.post("/link/register", json=body).status_code == 200
    assert client(running, running.worker_key, **{"X-Agent-ID": "a-real-worker"}).get("/agent/poll").status_code == 403


def test_lost_lease_frees_the_job_and_the_late_agent_is_told(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path / "data", lost_after_s=1.0)
    try:
        with running.client(running.admin_key) as admin:
            lab, other = agent(running, running.worker_key, "8"), agent(running, running.worker_key, "9")
            plain = agent(running, running.worker_key, "10", leased=False)
            kept = train(admin, "kept")
            slow = plain.take(kept)
            job_id = train(admin, "lost", "  retry: {max_attempts: 1}")
            job = lab.take(job_id)
            asked, left = train(admin, "asked"), train(admin, "left")
            for paused in (asked, left):
                there = lab.take(paused)
                assert there.patch(f"/local/{paused}/status", json={"status": "paused"}).status_code == 200
            assert admin.post(f"/tasks/{asked}/resume").json()["status"] == "paused"
            assert [each["command"] for each in lab.poll(want=0)["commands"]] == ["resume"]
            assert job.put(f"/local/{job_id}/metrics", json={"step": 1, "train_loss": 2.0}).status_code == 200
            deadline = time.monotonic() + 60
            while admin.get(f"/tasks/{job_id}").json()["status"] == "running":
                other.beat()
                assert time.monotonic() < deadline, "the lease did not end"
                time.sleep(0.1)
            assert admin.get(f"/tasks/{job_id}").json()["status"] == "queued"
            assert other.poll()["job"]["id"] == job_id
            other.take(job_id)
            # A paused job stays with its agent; once that is gone, a resume puts it back into the queue.
            assert admin.get(f"/tasks/{asked}").json()["status"] == "queued"
            assert admin.get(f"/tasks/{left}").json()["status"] == "paused"
            assert admin.post(f"/tasks/{left}/resume").json()["status"] == "queued"
            # What comes late of the first attempt is refused, and the agent is told to end the job.
            assert job.put(f"/local/{job_id}/metrics", json={"step": 2, "train_loss": 1.0}).status_code == 401
            assert set(lab.beat(job_id, asked, left)["drop"]) == {job_id, asked, left}
            # One that never promised heartbeats is not given up so soon.
            assert slow.put(f"/local/{kept}/metrics", json={"step": 1, "train_loss": 2.0}).status_code == 200
    finally:
        running.stop()
        running.core.close()


ACCEPTED = {"nothing", "a blank", "blanks around", "here", "above", "a path", "an absolute path", "a folder"} | {
    "a folder of Windows"
}
"""Names that are harmless in the middle of a line that nobody goes to."""


@pytest.mark.parametrize("header", ["ID", "Hostname", "Platform", "Version"])
def test_what_an_agent_says_of_itself_in_a_header_is_one_line(running: Running, header: str) -> None:
    hand = client(running, running.worker_key)
    known = {"X-Agent-ID": b"agent_0123456789abcdef"}
    for encoding in ("utf-8", "latin-1"):
        for name, value in NAMES.items():
            try:
                data = b"agent_01234" + value.encode(encoding) + b"5"
            except UnicodeEncodeError:
                continue
            if name in ACCEPTED or any(each < 32 and each != 9 for each in data):  # of HTTP they are no header
                continue
            answer = hand.get("/agent/poll", headers=[*{**known, f"X-Agent-{header}": data[:300]}.items()])
            assert answer.status_code == 400, (name, answer.text)
            assert f"x-agent-{header.lower()}" in answer.json()["detail"].lower(), answer.text
    told = "büro 机器".encode()
    assert hand.get("/agent/poll", headers=[("X-Agent-ID", known["X-Agent-ID"]), ("X-Agent-Hostname", told)]).is_success
    listed = client(running, running.admin_key).get("/agents").json()["agents"]
    assert "büro 机器" in {row["hostname"] for row in listed}
