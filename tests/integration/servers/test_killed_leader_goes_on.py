"""Rounds of a federation and cycles of a campaign while one leader after the other is killed: each is made once.

The campaign's provider bills each task that it creates and knows no idempotency; where a kill hits is left to chance.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import billed_package
from tests.fakes.billing import billing
from tests.integration.api.support import until
from tests.integration.api.test_federation_kills import first_value, upload
from tests.integration.campaign.test_kills import spec
from tests.integration.servers.trio import Trio
from tunefleet.client import Client
from tunefleet.schemas.campaign import CampaignDetail

KILLS_AFTER_S = (0.0, 0.3)
"""After the last upload of a round."""
CYCLES = 2


def kill_leader(trio: Trio) -> int:
    """End the server that leads, and return it once another one does."""
    until(lambda: trio.leader() is not None)
    killed, epoch = trio.leader(), trio.epoch()
    assert killed is not None
    trio.processes[killed].kill()
    trio.processes[killed].wait()
    until(lambda: trio.epoch() > epoch and trio.leader() is not None)
    return killed


def newest(worker: httpx.Client, id_: str, after: int) -> dict[str, Any]:
    """Wait for a version after another one; who leads next has to make it."""
    where, asked = f"/federations/{id_}/versions/newest", {"after": after}
    until(lambda: worker.get(where, params=asked).status_code == 200)
    found: dict[str, Any] = worker.get(where, params=asked).json()
    return found


def campaign(trio: Trio, number: int) -> CampaignDetail:
    with Client(trio.base(number), trio.key(), patience_s=60.0) as client:
        return client.campaigns.get("steady")


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_rounds_and_cycles_go_on_where_a_killed_leader_left_them(trio: Trio, tmp_path: Path) -> None:
    billed_package.install(tmp_path / "layer")
    with billing(answer_s=0.05) as bills:
        path = os.pathsep.join(filter(None, (str(tmp_path / "layer"), os.environ.get("PYTHONPATH"))))
        trio.settings = {"PYTHONPATH": path, billed_package.ADDRESS: bills.url, "TUNEFLEET_JOB_SLOTS": "2"}
        trio.start(0, 1, 2)
        trio.work(trio.follower())
        with Client(trio.base(0), trio.key()) as client:
            client.campaigns.apply({"steady": spec()})
        with trio.client(0) as admin:
            made = admin.post("/federations", json={"min_workers": 2}).json()
        for number, delay_s in enumerate(KILLS_AFTER_S, 1):
            through = trio.follower()
            headers = {"Authorization": f"Bearer {made['token']}"}
            with httpx.Client(base_url=f"{trio.base(through)}/api/v1", headers=headers, timeout=90) as worker:
                assert not upload(worker, made["id"], "w1", number, number + 1.0, tmp_path)["should_aggregate"]
                assert upload(worker, made["id"], "w2", number, number + 2.0, tmp_path)["should_aggregate"]
                time.sleep(delay_s)
                killed = kill_leader(trio)
                found = newest(worker, made["id"], number - 1)
                assert (found["version"], found["round"]) == (number, number)
                assert first_value(worker, made["id"], number, tmp_path) == pytest.approx(number + 1.5)
            trio.start(killed)
        through = trio.follower()
        deadline = time.monotonic() + 240
        while (steady := campaign(trio, through)).cycles <= CYCLES:
            assert steady.status == "active", steady.reason
            assert time.monotonic() < deadline, steady
            time.sleep(0.2)
        with trio.client(through) as admin:
            updates = admin.get(f"/federations/{made['id']}/updates").json()["items"]
            versions = admin.get(f"/federations/{made['id']}/versions").json()["items"]
            admin.post("/campaigns/steady/stop").raise_for_status()
        assert [(each["version"], each["round"]) for each in versions] == [(2, 2), (1, 1)]
        assert [each["state"] for each in updates] == ["aggregated"] * 4
        cycles = sorted((each for each in steady.cycle_list if each.number < CYCLES), key=lambda each: each.number)
        assert [each.status for each in cycles] == ["completed"] * CYCLES
        keys = [task["key"] for task in bills.tasks]
        assert len(set(keys)) == len(keys), "an order was placed, and paid for, twice"
        digests = [task["digest"] for task in bills.tasks if task["key"] in {f"{steady.id}/{n}" for n in range(CYCLES)}]
        assert len(digests) == len(set(digests)) == CYCLES, "a chunk was ordered twice, or left out"
