"""A crowd uploads, resends and breaks off at once while somebody pauses and goes back: the books still balance."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.federated import Worker, arrays, create, tarred, workers
from tests.integration.api.support import Running, until

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

NAMES = (*(f"w{number}" for number in range(8)), "w0", "w1")
"""Two machines use the names of others."""
STEPS = 40


def act(worker: Worker, chance: random.Random) -> httpx.Response:
    """Do what a worker may do, or what happens to one."""
    archive = tarred(worker.members(arrays(chance.randrange(10**6))))
    match chance.choices(["upload", "broken", "poll", "aggregate"], [7, 1, 1, 1])[0]:
        case "upload":
            return worker.send(archive, numExamples=chance.randrange(1, 50))
        case "broken":
            return worker.send(archive[:-5])
        case "poll":
            return worker.poll(after=chance.randrange(3), wait_s=0.2)
        case _:
            return worker.client.post(f"/api/training/adapters/{worker.job}/1/aggregate")


def all_of(admin: httpx.Client, where: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = admin.get(where, params={"limit": 500, **({"cursor": cursor} if cursor else {})}).json()
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def test_whatever_comes_at_once_each_update_counts_where_it_says(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    made = create(admin, min_workers=3)
    where = f"/federations/{made['id']}"
    statuses: list[int] = []

    def work(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        with workers(running, made, folder, NAMES[number]) as (one,):
            statuses.extend(act(one, random.Random(f"{number}/{step}")).status_code for step in range(STEPS))

    def steer() -> None:
        chance = random.Random("steer")
        with running.client(running.admin_key) as client:
            while not over.wait(0.05):
                verb = chance.choice(["pause", "start", "start", "rollback"])
                reply = client.post(f"{where}/{verb}", json={"version": 1} if verb == "rollback" else None)
                statuses.append(reply.status_code)

    over = threading.Event()
    steering = threading.Thread(target=steer)
    crowd = [threading.Thread(target=work, args=(number,)) for number in range(len(NAMES))]
    for thread in (steering, *crowd):
        thread.start()
    for thread in crowd:
        thread.join(200)
    over.set()
    steering.join(60)
    assert Counter(statuses).keys() <= {200, 204, 400, 404, 409, 422}, "nothing is the server's fault"
    assert len(statuses) > len(NAMES) * STEPS
    admin.post(f"{where}/start")
    until(lambda: admin.get(where).json()["rounds"][0]["status"] == "collecting")
    balances(admin, where)
    until(lambda: not list((running.core.blobs.root / "landing").iterdir()))


def balances(admin: httpx.Client, where: str) -> None:
    """Hold rounds, updates and versions against each other."""
    rounds, versions = all_of(admin, f"{where}/rounds"), all_of(admin, f"{where}/versions")
    by_round: dict[int | None, list[dict[str, Any]]] = defaultdict(list)
    for update in all_of(admin, f"{where}/updates"):
        by_round[update["round"]].append(update)
    assert [each["version"] for each in versions] == list(range(len(versions), 0, -1))
    made_by = {each["round"]: each for each in versions if each["round"] is not None}
    published = [each["number"] for each in rounds if each["status"] == "published"]
    assert sorted(made_by) == sorted(published)
    assert published
    for each in rounds:
        number, updates = each["number"], by_round[each["number"]]
        counted = [update["worker"] for update in updates if update["state"] == "counted"]
        assert not counted or number == rounds[0]["number"], "no round is left behind"
        used = {update["worker"]: update["weight"] for update in updates if update["state"] == "aggregated"}
        if number not in made_by:
            assert used == {}
            continue
        assert len(used) == len([update for update in updates if update["state"] == "aggregated"]) >= 2
        assert sorted(used) == sorted(made_by[number]["contributors"])
        assert sum(used.values()) == pytest.approx(1.0)
    for each in versions:
        assert admin.get(f"{where}/versions/{each['version']}/adapter").status_code == 200
