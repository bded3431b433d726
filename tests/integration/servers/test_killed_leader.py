"""Three servers, one of which leads: what becomes of work when that one is killed."""

from __future__ import annotations

import time

import pytest

from tests.integration.server.support import until
from tests.integration.servers.trio import LONG, QUICK, Trio, named, submit


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_leader_is_followed_and_nothing_runs_twice(trio: Trio) -> None:
    trio.start(0, 1, 2)
    through = trio.follower()
    other = next(number for number in range(3) if number not in {through, trio.leader()})
    trio.work(through)
    with trio.client(through) as client, trio.client(other) as elsewhere:
        # It met the leader through a server that follows, and any of them says so.
        until(lambda: [each["status"] for each in elsewhere.get("/workers").json()["items"]] == ["online"])
        done = submit(client, named(QUICK, "before"))
        job = submit(elsewhere, named(LONG, "long", trio.folder))
        until((trio.folder / "began").exists)
        before, epoch = trio.leader(), trio.epoch()
        assert before is not None
        trio.processes[before].kill()
        began = time.monotonic()
        until(lambda: trio.epoch() > epoch)
        assert time.monotonic() - began < 30
        after = submit(client, named(QUICK, "after"))
        (trio.folder / "end").touch()
        for each in (done, job, after):
            until(lambda each=each: elsewhere.get(f"/workflows/{each}").json()["status"] == "completed")
    # One attempt for each task, and one start of each job.
    assert trio.rows("SELECT count(*), count(DISTINCT task_id) FROM attempts") == [(3, 3)]
    assert trio.rows("SELECT DISTINCT status FROM tasks") == [("completed",)]
