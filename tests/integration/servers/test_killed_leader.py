"""Three servers, one of which leads: what becomes of work when that one stands still, is killed, or stops."""

from __future__ import annotations

import signal
import time

import pytest

from tests.integration.api.support import until
from tests.integration.servers.trio import LONG, QUICK, Trio, named, submit


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_a_leader_is_followed_and_nothing_runs_twice(trio: Trio) -> None:
    trio.start(0, 1, 2)
    through = trio.follower()
    other = next(number for number in range(3) if number not in {through, trio.leader()})
    trio.work(through)
    with trio.client(through) as client, trio.client(other) as elsewhere:
        # It met the leader through a server that follows, and each of them says so.
        until(lambda: [each["status"] for each in elsewhere.get("/workers").json()["items"]] == ["online"])
        peers = elsewhere.get("/servers").json()
        assert [each["leads"] for each in peers["servers"]].count(True) == 1
        assert [each["url"] for each in peers["servers"] if each["this"]] == [trio.base(other)]
        done = submit(client, named(QUICK, "before"))
        job = submit(elsewhere, named(LONG, "long", trio.folder))
        until((trio.folder / "began").exists)

        # It stands still: another one leads, and what it wants to write when it awakes is refused.
        still, epoch = trio.leader(), trio.epoch()
        assert still is not None
        trio.processes[still].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        until(lambda: trio.epoch() > epoch)
        assert time.monotonic() - began < 60
        follower = next(number for number in range(3) if number not in {still, trio.leader()})
        with trio.client(follower) as third:
            meanwhile = submit(third, named(QUICK, "meanwhile"))
        trio.processes[still].send_signal(signal.SIGCONT)
        until(lambda: "no longer the leader" in trio.log(still))
        until(lambda: trio.answers(still))

        # It is killed: its successor is there before it is back.
        killed, epoch = trio.leader(), trio.epoch()
        assert killed is not None
        trio.processes[killed].kill()
        trio.processes[killed].wait()
        until(lambda: trio.epoch() > epoch)
        trio.start(killed)
        after = submit(client, named(QUICK, "after"))
        (trio.folder / "end").touch()
        for each in (done, job, meanwhile, after):
            until(lambda each=each: elsewhere.get(f"/workflows/{each}").json()["status"] == "completed")

        # A key that is revoked on one server is good on none.
        made = client.post("/keys", json={"name": "short", "role": "member"}).json()
        bearer = {"Authorization": f"Bearer {made['secret']}"}
        assert elsewhere.get("/workflows", headers=bearer).status_code == 200
        client.delete(f"/keys/{made['id']}").raise_for_status()
        until(lambda: elsewhere.get("/workflows", headers=bearer).status_code == 401)

        # It stops: it gives the lead back, and leaves.
        stopped, epoch = trio.leader(), trio.epoch()
        assert stopped is not None
        trio.processes[stopped].send_signal(signal.SIGTERM)
        assert trio.processes[stopped].wait(60) == 0
        until(lambda: trio.epoch() > epoch)
        assert trio.leader() not in {None, stopped}
        assert trio.rows("SELECT count(*) FROM servers") == [(2,)]
    # Each ran once: an offer that nobody could take in time, on a busy machine, is no run.
    assert trio.ran() == 4
    assert trio.rows("SELECT DISTINCT status FROM tasks") == [("completed",)]
