"""Workers that are begun again: the newest attempt alone takes part, and rows that two went over count once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.services.federating import Party, keep, party
from tests.unit.services.lab import Lab
from tunefleet.errors import GoneError
from tunefleet.services.federation import jobs, members
from tunefleet.wire.federated import MemberChange


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
    with pytest.raises(GoneError, match=f"Attempt 1 of w1 is over: attempt 2 takes part in {group.id} now"):
        await group.upload("w1", 3.0, attempt=1)
    with pytest.raises(GoneError, match="Attempt 1 of w1 is over"):
        await join(group, 1)
    assert await group.updates(1) == before, "nothing of it has come in, and nothing has made way for it"
    await group.upload("w1", 4.0, attempt=2)
    (member,) = (await jobs.get(lab.core, lab.admin, group.id)).member_list
    assert member.attempt == 2


async def test_whoever_counts_no_attempts_stays_as_he_is(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await join(group, None)
    for value in (1.0, 2.0):
        assert (await group.upload("w1", value, num_examples=5)).counted
    (member,) = (await jobs.get(lab.core, lab.admin, group.id)).member_list
    assert (member.attempt, (await group.updates(1))[-1].num_examples) == (None, 10)


async def test_what_was_overtaken_on_its_way_does_not_take_the_place_of_what_came_after_it(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    said: dict[str, Any] = {"num_examples": 8, "base_version": 0, "attempt": 1}
    newer = await group.upload("w1", 2.0, step=8, rows_before=8, **said)
    late = await group.upload("w1", 1.0, step=4, rows_before=0, **said)
    assert (late.counted, late.replaces) == (False, None)
    assert "has come before it" in (late.warning or "")
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
