"""Who leads: election, renewal, and the fence around what a leader writes; two servers on one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.test_federation_keeper import another
from tunefleet.api import leader_mirror
from tunefleet.db.access import keys
from tunefleet.db.fleet import servers
from tunefleet.db.fleet.servers import LeaderRow
from tunefleet.errors import NotLeadingError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import JoinWait, MergeWaits
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.ha.leader_election import LEASE_S, PATIENCE_S, RENEW_S, Election, TwinError
from tunefleet.orchestrator.leadership import fenced


@pytest.fixture
async def other(lab: Lab, tmp_path: Path) -> AsyncIterator[ServerContext]:
    async with another(lab, tmp_path / "other") as core:
        yield core


def pair(lab: Lab, other: ServerContext) -> tuple[Election, Election]:
    return Election(lab.core, "srv-a", "http://a:8000"), Election(other, "srv-b", "http://b:8000")


def leads(lab: Lab, *cores: ServerContext) -> list[bool]:
    return [core.leading.leads(lab.clock.monotonic) for core in cores]


async def row(lab: Lab) -> LeaderRow:
    return await lab.core.read(servers.look)


async def passes(lab: Lab, seconds: float, *elections: Election) -> None:
    for _ in range(round(seconds / 0.5)):
        lab.clock.monotonic += 0.5
        for each in elections:
            await each.run_once()


async def test_a_server_alone_leads_without_a_row(lab: Lab) -> None:
    assert leads(lab, lab.core) == [True]
    assert await row(lab) == LeaderRow(0)


async def test_the_first_leads_and_the_second_follows_while_it_renews(lab: Lab, other: ServerContext) -> None:
    first, second = pair(lab, other)
    await first.run_once()
    await passes(lab, 20, first, second)
    assert leads(lab, lab.core, other) == [True, False]
    assert (await row(lab)).epoch == 1
    assert other.leading.row.url == "http://a:8000"
    assert set(lab.core.leading.seen) == set(other.leading.seen) == {"srv-a", "srv-b"}


async def test_a_silent_leader_stops_before_another_one_begins(lab: Lab, other: ServerContext) -> None:
    first, second = pair(lab, other)
    await first.run_once()
    await passes(lab, 5, first, second)
    waited = 0.0
    while not other.leading.leads(lab.clock.monotonic):
        await passes(lab, 0.5, second)
        waited += 0.5
        assert waited <= 5, "nobody took over within five seconds"
        assert leads(lab, lab.core, other) != [True, True]
    assert waited >= LEASE_S
    assert PATIENCE_S > LEASE_S > RENEW_S
    assert (await row(lab)).epoch == 2
    # It awakes: it finds that it was followed, and begins to follow.
    await passes(lab, 2, first, second)
    assert leads(lab, lab.core, other) == [False, True]
    assert lab.core.leading.row.url == "http://b:8000"


async def test_a_leader_that_stops_is_followed_at_once(lab: Lab, other: ServerContext) -> None:
    first, second = pair(lab, other)
    await first.run_once()
    await second.run_once()
    await first.close()
    await second.run_once()
    assert leads(lab, lab.core, other) == [False, True]
    assert [each.id for each in await lab.core.read(servers.all_rows)] == ["srv-b"]


async def test_a_restarted_leader_need_not_wait_for_itself(lab: Lab, other: ServerContext) -> None:
    await Election(lab.core, "srv-a", None).run_once()
    await Election(other, "srv-a", None).run_once()
    assert (await row(lab)).epoch == 2
    assert other.leading.epoch == 2


async def test_of_two_with_one_name_the_later_one_is_told_and_goes(lab: Lab, other: ServerContext) -> None:
    first, copy = Election(lab.core, "srv-a", None), Election(other, "srv-a", None)
    await passes(lab, 5, first)
    with pytest.raises(TwinError, match="Another server has the same id srv-a") as told:
        await passes(lab, 20, copy, first)
    assert "server.id" in str(told.value.hint)
    await copy.close()
    await passes(lab, 20, first)
    assert [each.id for each in await lab.core.read(servers.all_rows)] == ["srv-a"]
    assert leads(lab, lab.core, other) == [True, False]


async def test_a_server_that_was_killed_is_no_other_with_its_name(lab: Lab, other: ServerContext) -> None:
    await passes(lab, 5, Election(lab.core, "srv-a", None))
    await passes(lab, 60, Election(other, "srv-a", None))
    assert leads(lab, other) == [True]


async def test_wall_clocks_that_differ_by_a_minute_do_not_matter(lab: Lab, other: ServerContext) -> None:
    first, second = pair(lab, other)
    await first.run_once()
    lab.clock.wall += 60
    await passes(lab, 10, first, second)
    lab.clock.wall -= 120
    await passes(lab, 10, first, second)
    assert leads(lab, lab.core, other) == [True, False]
    assert (await row(lab)).epoch == 1


async def test_a_time_in_which_nobody_looked_is_no_silence(lab: Lab, other: ServerContext) -> None:
    first, second = pair(lab, other)
    await first.run_once()
    await passes(lab, 5, first, second)
    # The database was away, or this process stood still.
    lab.clock.monotonic += 60
    await second.run_once()
    assert leads(lab, other) == [False]
    await passes(lab, PATIENCE_S + 0.5, second)
    assert leads(lab, other) == [True]


async def test_nothing_of_a_leader_by_force_is_written_and_its_successors_is(lab: Lab, other: ServerContext) -> None:
    first, second = pair(lab, other)
    await first.run_once()
    old = lab.core.leading.epoch
    await second.run_once()
    await passes(lab, 5, second)
    # The old one takes itself for the leader still, whatever the clock says.
    lab.core.leading.until = float("inf")
    assert leads(lab, lab.core, other) == [True, True]
    with fenced(old), pytest.raises(NotLeadingError, match="is no longer the leader"):
        await lab.core.write(lambda connection: keys.put_meta(connection, "mark", "old"))
    with fenced(other.leading.epoch):
        await other.write(lambda connection: keys.put_meta(connection, "mark", "new"))
    # What any server may write is not held up by the fence.
    await lab.core.write(lambda connection: keys.put_meta(connection, "request", "served"))
    assert await lab.core.read(lambda connection: keys.get_meta(connection, "mark")) == "new"
    assert await lab.core.read(lambda connection: keys.get_meta(connection, "request")) == "served"


async def test_of_two_that_take_over_at_once_one_does(lab: Lab, other: ServerContext) -> None:
    seen = await row(lab)
    taken = [
        await core.write(lambda connection, n=name: servers.take(connection, seen, LeaderRow(0, n, n)))
        for core, name in ((lab.core, "a"), (other, "b"))
    ]
    assert [each is not None for each in taken] == [True, False]
    # A leader that has renewed since somebody looked is alive.
    seen = await row(lab)
    assert await lab.core.write(lambda connection: servers.renew(connection, seen.epoch))
    assert await other.write(lambda connection: servers.take(connection, seen, LeaderRow(0, "b", "b"))) is None


async def test_a_follower_says_what_the_leader_knows_of_parts_that_are_put_together(
    lab: Lab, other: ServerContext
) -> None:
    lab.core.state(MergeWaits).by_task = {7: JoinWait(1, 0.0, "wait for room")}
    other.put_state(TypeAdapter(Fleet).validate_json(leader_mirror.dump(lab.core)))
    assert (
        cluster_state.fleet_snapshot(other).joins
        == cluster_state.fleet_snapshot(lab.core).joins
        == {7: "wait for room"}
    )
