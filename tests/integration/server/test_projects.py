"""Projects over HTTP: they compete for one worker, their quotas hold, what they use is counted, and the log tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.integration.server.support import HandWorker, Running, is_problem, submit, until

GPUS = [{"uuid": f"GPU-{number}", "name": "L40", "memory_total_bytes": 48 << 30} for number in range(2)]


@pytest.fixture(scope="module")
def running(start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("projects"), lost_after_s=600)
    yield running
    running.stop()
    running.core.close()


@pytest.fixture
def member(running: Running, admin: httpx.Client) -> Iterator[Callable[..., httpx.Client]]:
    """Make a project unless it is there, and a client with a key of it."""
    with ExitStack() as stack:

        def make(project: str, role: str = "member", **quotas: Any) -> httpx.Client:
            if admin.get(f"/projects/{project}").status_code == 404:
                made = admin.post("/projects", json={"name": project, **quotas})
                assert made.status_code == 201, made.text
            body = {"name": f"{project}-{role}", "role": role, "project": project}
            key = admin.post("/keys", json=body)
            assert key.status_code == 201, key.text
            return stack.enter_context(running.client(key.json()["secret"]))

        yield make


def test_two_projects_share_a_worker_within_their_quotas(
    running: Running, admin: httpx.Client, worker: httpx.Client, member: Callable[..., httpx.Client]
) -> None:
    red, blue = member("red", max_running=2), member("blue")
    hand = HandWorker(worker, "shared", slots=4)
    hand.register()
    reds = [submit(red) for _ in range(6)]
    blues = [submit(blue) for _ in range(6)]
    offers: dict[str, str] = {}

    def offered() -> bool:
        got = hand.exchange(wait_s=0.5, want={"light": 4})["offers"]
        offers.update({each["task_id"]: each["token"] for each in got})
        return len(offers) == 4

    until(offered)
    assert sum(id_ in offers for id_ in reds) == 2
    assert sum(id_ in offers for id_ in blues) == 2
    held = next(id_ for id_ in reds if id_ not in offers)
    why = red.get(f"/tasks/{held}/why").json()["why"]
    assert "2 tasks of the project red run, and its quota is 2" in why
    assert "tunefleet projects set red --max-running" in why
    is_problem(blue.get(f"/tasks/{held}"), 404, "not_found")
    hand.holding += list(offers.values())
    assert set(hand.exchange(accepts=list(offers.values()))["accepted"]) == set(offers.values())
    assert blue.get("/workers/shared").json()["running"] == [id_ for id_ in blues if id_ in offers]
    for token in list(offers.values()):
        hand.finish(token)
    used = {row["key"]: row for row in admin.get("/usage", params={"by": "project"}).json()["rows"]}
    assert (used["red"]["attempts"], used["blue"]["attempts"]) == (2, 2)
    assert used["red"]["cost"] >= 0
    assert [row["key"] for row in red.get("/usage").json()["rows"]] == ["red"]
    entries = admin.get("/audit", params={"route": "/workflows", "actor": "red-member"}).json()["items"]
    assert [entry["status"] for entry in entries] == [201] * 6
    assert {(entry["project"], entry["address"]) for entry in entries} == {("red", "127.0.0.1")}
