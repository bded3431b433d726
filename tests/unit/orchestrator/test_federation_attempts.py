"""Workers that are begun again: the newest attempt alone takes part, and rows that two went over count once."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.orchestrator.federating import Party, keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, rounds
from tunefleet.db.repositories import events
from tunefleet.errors import GoneError
from tunefleet.lifecycle.round import RoundReason
from tunefleet.orchestrator.federation import members, service
from tunefleet.orchestrator.federation import rounds as round_operations
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.schemas.federated import MemberChange


async def join(group: Party, attempt: int | None) -> None:
    body = MemberChange() if attempt is None else MemberChange(attempt=attempt)
    await members.change(group.lab.core, group.lab.admin, group.id, "w1", body)


@pytest.mark.parametrize("by", ["joining", "uploading"])
async def test_what_an_older_attempt_sends_is_refused_once_a_newer_one_takes_part(
    lab: Lab, tmp_path: Path, by: str
) -> None:
    group = await party(lab, tmp_path / "files")
    await join(group, 1)
    await group.upload("w1", 1.0, attempt=1)
    if by == "joining":
        await join(group, 2)
    else:
        await group.upload("w1", 2.0, attempt=2)
    before = await group.updates(1)
    with pytest.raises(GoneError, match=f"Attempt 1 of w1 was replaced by attempt 2 in {group.id}"):
        await group.upload("w1", 3.0, attempt=1)
    with pytest.raises(GoneError, match="Attempt 1 of w1 was replaced"):
        await join(group, 1)
    assert await group.updates(1) == before, "nothing of it has come in, and nothing has made way for it"
    await group.upload("w1", 4.0, attempt=2)
    (member,) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert member.attempt == 2


async def test_whoever_counts_no_attempts_stays_as_he_is(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await join(group, None)
    for value in (1.0, 2.0):
        assert (await group.upload("w1", value, num_examples=5)).counted
    (member,) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert (member.attempt, (await group.updates(1))[-1].num_examples) == (None, 10)


async def test_what_was_overtaken_on_its_way_does_not_take_the_place_of_what_came_after_it(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    said: dict[str, Any] = {"num_examples": 8, "base_version": 0, "attempt": 1}
    newer = await group.upload("w1", 2.0, step=8, rows_before=8, **said)
    late = await group.upload("w1", 1.0, step=4, rows_before=0, **said)
    assert (late.counted, late.replaces) == (False, None)
    assert "arrived first" in (late.warning or "")
    states = {each.seq: each.state for each in await group.updates(1)}
    assert states == {newer.update.seq: "counted", late.update.seq: "discarded"}


OLD: dict[str, Any] = {"num_examples": 8, "step": 4, "attempt": 1, "base_version": 0}


@pytest.mark.parametrize(
    ("old", "new", "weighs"),
    [
        ({}, {"step": 8, "num_examples": 16}, 16),
        ({"rows_before": 0}, {"step": 8, "num_examples": 16, "rows_before": 0}, 16),
        ({"rows_before": 0}, {"step": 8, "num_examples": 8, "rows_before": 8}, 16),
        ({"rows_before": 16}, {"step": 12, "num_examples": 14, "rows_before": 20}, 18),
        ({"rows_before": 40}, {"step": 4, "num_examples": 8, "rows_before": 0}, 8),
        ({"rows_before": 0}, {"step": 8, "num_examples": 16, "rows_before": 0, "base_version": 1}, 16),
    ],
    ids=["unsaid", "anew", "from after it", "from the midst of it", "anew, and long before", "from a version"],
)
async def test_rows_that_the_attempt_before_has_counted_in_an_open_round_are_replaced(
    lab: Lab, tmp_path: Path, old: dict[str, Any], new: dict[str, Any], weighs: int
) -> None:
    group = await party(lab, tmp_path / "files")
    first = await group.upload("w1", 1.0, **(OLD | old))
    again = await group.upload("w1", 2.0, **({"attempt": 2, "base_version": 0} | new))
    assert (again.counted, again.update.num_examples, again.warning) == (True, weighs, None)
    states = {each.seq: each.state for each in await group.updates(1)}
    assert states == {first.update.seq: "superseded", again.update.seq: "counted"}
    await group.upload("w2", 3.0, num_examples=100)
    await keep(lab.core)
    assert (await group.version()).num_examples == 100 + weighs


async def test_every_update_of_an_open_round_is_weighed(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    said: dict[str, Any] = {"num_examples": 8, "base_version": 0, "attempt": 1}
    for number in range(3):
        last = await group.upload("w1", float(number), step=4 * (number + 1), rows_before=8 * number, **said)
    assert last.update.num_examples == 24
    late = await group.upload("w1", 9.0, step=8, rows_before=8, **said)
    assert not late.counted, "it ends before the one that has its rows"


@pytest.mark.parametrize(
    ("rows_before", "num_examples", "weighs"),
    [(0, 8, None), (4, 4, None), (4, 12, 8), (8, 8, 8), (0, 20, 12)],
    ids=["anew", "again", "again and beyond", "beyond", "anew and beyond"],
)
async def test_rows_that_a_version_has_are_not_counted_again_by_an_attempt_that_begins_before_them(
    lab: Lab, tmp_path: Path, rows_before: int, num_examples: int, weighs: int | None
) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0, step=4, num_examples=8, rows_before=0, attempt=1, base_version=0)
    await group.upload("w2", 2.0, num_examples=8)
    await keep(lab.core)
    assert (await group.version()).num_examples == 16
    said: dict[str, Any] = {"step": 9, "attempt": 2, "base_version": 1}
    again = await group.upload("w1", 3.0, num_examples=num_examples, rows_before=rows_before, **said)
    if weighs is None:
        assert (again.counted, again.update.state) == (False, "discarded")
        assert "has already sent these rows" in (again.warning or "")
    else:
        assert (again.counted, again.update.num_examples, again.warning) == (True, weighs, None)
    (member, _) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert (member.worker, member.num_examples) == ("w1", 8 + (weighs or 0)), "what was taken out is not new"
    await group.upload("w1", 4.0, num_examples=6, rows_before=20, **(said | {"step": 12}))
    await group.upload("w2", 5.0, num_examples=8)
    await keep(lab.core)
    assert (await group.version(2)).num_examples == 8 + (weighs or 0) + 6


async def fail_for(group: Party, blamed: Accepted) -> None:
    """Let the round that is being aggregated fail because of one update."""
    row, current, now = await group.row(), await group.round(), group.lab.clock.wall

    def operation(connection: Connection) -> bool:
        taken = rounds.claim(connection, current, holder="h", now=now, until=now + 60)
        assert taken is not None
        why = RoundReason.UPDATE_REFUSED
        return round_operations.fail(
            connection, row, taken, why, "It is broken.", now, holder="h", blamed=blamed.update
        )

    assert await group.lab.core.write(operation)


@pytest.mark.parametrize(
    ("later", "alone", "weighs"),
    [
        ({"rows_before": 8, "num_examples": 8, "attempt": 1}, 8, 16),
        ({"rows_before": 0, "num_examples": 16, "attempt": 2}, 8, 16),
        ({"rows_before": 4, "num_examples": 8}, 8, 12),
        ({"rows_before": 8, "num_examples": 30, "attempt": 1}, 30, 32),
        ({"rows_before": 8, "num_examples": 8, "attempt": 1, "base_version": 1}, 8, 8),
    ],
    ids=["goes on", "anew and beyond", "some of them again", "more than one may claim", "from a version"],
)
async def test_what_waited_beside_a_round_that_failed_weighs_the_rows_of_the_one_whose_place_it_takes(
    lab: Lab, tmp_path: Path, later: dict[str, Any], alone: int, weighs: int
) -> None:
    group = await party(lab, tmp_path / "files", max_num_examples=32)
    first = await group.upload(
        "w1", 1.0, step=4, num_examples=8, rows_before=0, attempt=later.get("attempt"), base_version=0
    )
    broken = await group.upload("w2", 2.0, num_examples=8)
    waiting = await group.upload("w1", 3.0, step=9, **({"base_version": 0} | later))
    assert (waiting.update.state, waiting.update.num_examples) == ("waiting", alone)
    await fail_for(group, broken)
    assert [each.state for each in await group.updates(1)] == ["superseded", "rejected"]
    (left,) = await group.updates(2)
    assert (left.seq, left.state, left.num_examples) == (waiting.update.seq, "counted", weighs)
    assert await group.lab.core.read(lambda connection: federation_updates.replaced_by(connection, left)) == (
        first.update.seq
    )


async def test_whoever_counts_no_attempts_may_begin_another_training(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0, step=4, num_examples=8, rows_before=0)
    await group.upload("w2", 2.0, num_examples=8)
    await keep(lab.core)
    again = await group.upload("w1", 3.0, step=4, num_examples=8, rows_before=0, base_version=1)
    assert (again.counted, again.update.num_examples) == (True, 8)


async def test_a_worker_that_joins_is_told_which_of_its_rows_count_already(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")

    async def told(attempt: int | None) -> int | None:
        body = MemberChange() if attempt is None else MemberChange(attempt=attempt)
        return (await members.change(lab.core, lab.admin, group.id, "w1", body)).rows_taken

    assert await told(1) == 0
    await group.upload("w1", 1.0, step=4, num_examples=8, rows_before=0, attempt=1)
    assert await told(2) == 8, "it counts in the round that is open"
    await group.upload("w2", 2.0, num_examples=8)
    await keep(lab.core)
    assert (await told(3), await told(None)) == (8, None)


async def test_an_update_from_before_a_version_does_not_add_its_rows_to_one_from_after_it(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    for worker in ("w1", "w2"):
        await group.upload(worker, 1.0, num_examples=80)
    await keep(lab.core)
    await group.upload("w1", 2.0, step=20, num_examples=80)  # made before version 1 replaced what it had learnt
    fresh = await group.upload("w1", 3.0, step=30, num_examples=80)
    assert fresh.update.num_examples == 80
    more = await group.upload("w1", 4.0, step=40, num_examples=80)
    assert more.update.num_examples == 160, "it goes on from one that came after the version"


async def test_a_number_of_rows_is_corrected_while_its_round_is_open_and_refused_after_it(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0, step=10, num_examples=8)
    again = await group.upload("w1", 1.0, step=10, num_examples=80)
    assert (again.counted, again.update.num_examples) == (True, 80)
    assert again.warning == "Its number of rows was changed from 8 to 80."
    (member,) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert member.num_examples == 80
    (event,) = await corrections(group)
    assert event == {
        "federation": group.id, "number": group.made.number, "worker": "w1", "update": again.update.seq, "round": 1,
        "state": "counted", "step": 10, "num_examples": 80, "num_examples_before": 8,
    }  # fmt: skip
    await group.upload("w2", 2.0, num_examples=20)
    await keep(lab.core)
    assert (await group.version()).num_examples == 100
    late = await group.upload("w1", 1.0, step=10, num_examples=8)
    assert late.warning is not None
    assert late.warning.startswith("It counts in round 1 with 80 rows; the round is closed, and the number cannot be")
    assert (await group.upload("w1", 1.0, step=10, num_examples=80)).warning is None, "the same again is answered again"
    assert len(await corrections(group)) == 1, "what is not corrected is no event"


async def corrections(group: Party) -> list[dict[str, Any]]:
    read = partial(events.after, event_id=0, project="default", limit=100, federation_seq=group.made.number)
    found = await group.lab.core.read(read)
    return [json.loads(each.data) for each in found if each.kind == "federation.update_corrected"]


async def test_a_worker_that_trains_nothing_any_more_is_seen(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await group.upload("w1", 1.0)
    await group.upload("w2", 2.0)
    (stalled, well) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert "nothing was trained since" in (stalled.refused or "")
    assert well.refused is None
    await group.upload("w1", 3.0)
    assert [each.refused for each in await members.list_(lab.core, lab.admin, group.id)] == [None, None]
