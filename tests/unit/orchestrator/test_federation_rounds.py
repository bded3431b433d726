"""In which round an update counts, and when a round is closed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.unit.orchestrator.federating import adapter, keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federations
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.errors import ArtifactError, ConflictError, ForbiddenError, GoneError
from tunefleet.orchestrator.federation import rounds, service
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.federation.updates.acceptance import CheckAgain, Refused


async def test_strangers_close_a_round_when_enough_have_uploaded(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", min_workers=2)
    first = await group.upload("w1", 1.0)
    assert (first.counted, first.closes, first.round, first.version) == (True, False, 1, 0)
    assert (await group.round()).status == "collecting"
    second = await group.upload("w2", 3.0)
    assert (second.counted, second.closes) == (True, True)
    closed = await group.round()
    assert (closed.status, closed.reason, closed.closed_at) == ("aggregating", "all_here", lab.clock.wall)


async def test_named_participants_are_waited_for(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", participants=["a", "b", "c"])
    await group.upload("a", 1.0)
    assert not (await group.upload("b", 2.0)).closes, "two would be enough, but a third one is expected"
    with pytest.raises(ForbiddenError, match=r"x is not a participant of fed-.* \(a, b, c\)"):
        await group.upload("x", 1.0)
    assert (await group.upload("c", 3.0)).closes


async def test_at_the_deadline_those_are_enough_that_make_a_quorum(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", participants=["a", "b", "c"], deadline_s=600)
    lab.clock.advance(10_000)
    await group.upload("a", 1.0)
    assert (await group.round()).deadline_at == lab.clock.wall + 600, "time runs from the first update"
    await group.upload("b", 2.0)
    lab.clock.advance(599)
    await keep(lab.core)
    assert (await group.round()).status == "collecting"
    lab.clock.advance(1)
    await keep(lab.core)
    assert (await group.round(1)).status == "published"
    assert (await group.version()).contributors == ("a", "b")


async def test_without_a_quorum_a_round_waits_beyond_its_deadline(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", participants=["a", "b", "c"], deadline_s=60)
    await group.upload("a", 1.0)
    lab.clock.advance(600)
    await keep(lab.core)
    waiting = await group.round()
    assert (waiting.number, waiting.status) == (1, "collecting")
    assert (await service.get(lab.core, lab.admin, group.id)).why == "1 of 3 updates received. Waiting for b, c."
    assert (await group.upload("c", 3.0)).closes, "with the second one it is over"
    assert (await group.round()).reason == "deadline"


async def test_what_comes_late_counts_in_the_next_round(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await group.upload("w2", 1.5)
    late = await group.upload("w3", 7.0)
    assert (late.counted, late.round) == (False, 2)
    assert late.warning is not None
    assert late.warning.startswith("Round 1 is aggregating and does not accept it. This update counts in round 2")
    await keep(lab.core)
    assert (await group.version()).contributors == ("w1", "w2")
    assert [(each.worker, each.state) for each in await group.updates(2)] == [("w3", "counted")]
    assert (await group.round()).deadline_at == lab.clock.wall + 600
    await group.upload("w1", 2.0)
    await keep(lab.core)
    assert (await group.version(2)).contributors == ("w1", "w3")


async def test_late_updates_that_make_a_quorum_close_the_next_round_at_once(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    for worker, value in (("w1", 1.0), ("w2", 2.0), ("w3", 3.0), ("w4", 4.0)):
        await group.upload(worker, value)
    await keep(lab.core)
    await keep(lab.core)
    assert [(await group.version(n)).contributors for n in (1, 2)] == [("w1", "w2"), ("w3", "w4")]


async def test_a_second_upload_of_a_worker_takes_the_place_of_its_first(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    first = await group.upload("w1", 1.0)
    second = await group.upload("w1", 5.0)
    assert (second.counted, second.closes) == (True, False), "one worker is no quorum"
    assert (first.replaces, second.replaces) == (None, first.update.seq)
    assert (await group.upload("w1", 5.0, step=second.update.step)).replaces == first.update.seq, "said again"
    rows = await group.updates(1)
    assert [(each.seq, each.state, each.reason) for each in rows] == [
        (first.update.seq, "superseded", f"Replaced by update {second.update.seq}."),
        (second.update.seq, "counted", None),
    ]
    await group.upload("w2", 7.0, num_examples=2)
    await keep(lab.core)
    assert (await group.values())["base_model.model.layer.lora_A.weight"][0, 0] == pytest.approx(6.0)


async def test_who_uploads_twice_in_a_round_weighs_the_rows_of_both(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", max_num_examples=500)
    await group.upload("w1", 1.0, num_examples=100)
    assert (await group.upload("w1", 2.0, num_examples=200)).update.num_examples == 300
    assert (await group.upload("w1", 3.0, num_examples=400)).update.num_examples == 500, "as much as one may claim"
    (member,) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert member.num_examples == 700
    await group.upload("w2", 4.0, num_examples=1)
    late = await group.upload("w1", 5.0, num_examples=10, base_version=0)
    assert (late.counted, late.update.num_examples) == (False, 10), "what is aggregated is not added again"
    assert (await group.upload("w1", 6.0, num_examples=20, base_version=0)).update.num_examples == 30
    assert (await group.upload("w1", 7.0, num_examples=40, base_version=1)).update.num_examples == 40, "it began anew"


async def test_who_goes_back_trains_the_same_rows_again_or_is_another_machine(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    first = await group.upload("w1", 1.0, step=200, num_examples=100)
    assert first.warning is None
    again = await group.upload("w1", 2.0, step=200, num_examples=100)
    assert (again.counted, again.update.num_examples) == (True, 100)
    assert again.warning is not None
    assert "give each one its own" in again.warning
    replayed = await group.upload("w1", 1.0, step=200, num_examples=100)
    assert (replayed.counted, replayed.warning) == (False, f"Replaced by update {again.update.seq}.")


async def test_what_waited_for_a_version_without_saying_where_it_began_is_not_added(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    for worker in ("w1", "w2", "w1"):
        await group.upload(worker, len(group.steps) + sum(group.steps.values()), num_examples=5)
    newer = await group.upload("w1", 9.0, num_examples=7)
    assert (newer.counted, newer.update.num_examples) == (False, 7)


async def test_a_late_update_too_is_replaced_by_a_newer_one(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await group.upload("w2", 2.0)
    await group.upload("w1", 3.0)
    await group.upload("w1", 4.0)
    await keep(lab.core)
    (waiting,) = await group.updates(2)
    assert (waiting.worker, waiting.step) == ("w1", 300)


async def test_the_same_update_is_taken_once_however_often_it_comes(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    first = await group.upload("w1", 1.0, step=100)
    again = await group.upload("w1", 1.0, step=100)
    assert (again.update.seq, again.counted, again.warning) == (first.update.seq, True, None)
    await group.upload("w2", 2.0)
    await keep(lab.core)
    rounds_later = await group.upload("w1", 1.0, step=100)
    assert (rounds_later.update.seq, rounds_later.counted, rounds_later.round) == (first.update.seq, True, 1)
    assert len(await group.updates(1)) == 2
    assert await group.updates(2) == []


async def test_an_update_without_any_training_does_not_count_and_says_how_to_mend_that(
    lab: Lab, tmp_path: Path
) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    stale = await group.upload("w1", 1.0)
    assert (stale.counted, stale.update.state) == (False, "discarded")
    assert stale.warning is not None
    assert "nothing was trained since" in stale.warning
    assert "tunefleet.FederatedCallback" in stale.warning
    assert [each.state for each in await group.updates(1)] == ["counted", "discarded"], "the earlier one still counts"
    doubted = await group.upload("w2", 2.0, doubt="The folder aggregated/ was not trained.")
    assert (doubted.counted, doubted.closes, doubted.warning) == (
        False, False, "The folder aggregated/ was not trained."
    )  # fmt: skip


async def test_workers_meet_by_round_whatever_their_steps(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("fast", 1.0, step=9_000)
    assert (await group.upload("slow", 2.0, step=3)).closes
    await keep(lab.core)
    assert (await group.version()).step == 9_000


async def test_a_paused_federation_takes_updates_and_closes_no_round(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await service.pause(lab.core, lab.admin, group.id)
    taken = await group.upload("w2", 2.0)
    assert (taken.counted, taken.closes) == (True, False)
    assert taken.warning is not None
    assert "paused" in taken.warning
    lab.clock.advance(10_000)
    await keep(lab.core)
    assert (await group.round()).status == "collecting"
    with pytest.raises(ConflictError, match="is paused"):
        await lab.core.write(lambda connection: _close(connection, group.made.number, lab.clock.wall))
    await service.start(lab.core, lab.admin, group.id)
    assert (await group.round()).status == "aggregating"


async def test_the_round_after_a_pause_takes_in_what_came_meanwhile(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await group.upload("w2", 2.0)
    await service.pause(lab.core, lab.admin, group.id)
    await keep(lab.core)
    assert (await group.row()).version == 1, "what was closed before is published"
    assert (await group.round()).status == "sampling"
    waiting = await group.upload("w1", 3.0)
    assert (waiting.counted, waiting.round) == (False, 2)
    await service.start(lab.core, lab.admin, group.id)
    assert [(each.worker, each.state) for each in await group.updates(2)] == [("w1", "counted")]


async def test_the_first_upload_starts_a_federation_that_nobody_has_started(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", start=False)
    assert (await group.row()).status == "queued"
    assert (await group.upload("w1", 1.0)).counted
    assert (await group.row()).status == "running"


async def test_no_more_workers_take_part_than_may(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", min_workers=2, max_workers=2)
    await group.upload("w1", 1.0)
    await group.upload("w2", 2.0)
    with pytest.raises(ForbiddenError, match="already has its maximum of 2 workers, and w3 is not one of them"):
        await group.upload("w3", 3.0)


async def test_a_federation_for_all_who_come_has_an_end_too(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "MAX_WORKERS", 1)
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await group.upload("w1", 2.0)
    with pytest.raises(ForbiddenError, match="already has its maximum of 1 workers, and w2 is not one of them"):
        await group.upload("w2", 3.0)


async def test_of_many_participants_so_many_are_drawn_for_each_round(lab: Lab, tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(8)]
    group = await party(lab, tmp_path / "files", participants=names, min_workers=2, max_workers=3)
    drawn = []
    for number in range(1, 5):
        (shown,) = [each for each in (await service.get(lab.core, lab.admin, group.id)).rounds if each.number == number]
        assert shown.participants is not None
        assert len(shown.participants) == 3
        drawn.append(shown.participants)
        outsider = next(name for name in names if name not in shown.participants)
        for turn, name in enumerate((outsider, *shown.participants)):
            await group.upload(name, 1.0 + number + turn / 10)
        kept = await lab.core.read(partial(federation_updates.waiting, federation_seq=group.made.number))
        assert outsider in {each.worker for each in kept}, "who was not drawn waits for a round in which it is"
        await keep(lab.core)
        assert (await group.version(number)).contributors == shown.participants
    assert len(set(drawn)) > 1, "not the same ones each time"


async def test_a_federation_is_complete_after_its_rounds_and_takes_nothing_more(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", rounds=2)
    for number in range(2):
        await group.upload("w1", 1.0 + number)
        await group.upload("w2", 2.0 + number)
        await group.upload("w3", 3.0 + number)
        await keep(lab.core)
        await keep(lab.core)
    detail = await service.get(lab.core, lab.admin, group.id)
    assert (detail.status, detail.version) == ("completed", 2)
    assert detail.finished_at is not None
    with pytest.raises(GoneError, match="is completed and accepts no more updates"):
        await group.upload("w1", 9.0)


async def test_somebody_may_close_a_round_by_hand_once_there_are_two(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files", min_workers=5)
    await group.upload("w1", 1.0)
    with pytest.raises(ConflictError, match="has 1 updates; aggregation needs at least 2"):
        await lab.core.write(lambda connection: _close(connection, group.made.number, lab.clock.wall))
    await group.upload("w2", 2.0)
    closed = await lab.core.write(lambda connection: _close(connection, group.made.number, lab.clock.wall))
    assert (closed.status, closed.reason) == ("aggregating", "asked_for")


async def test_two_first_updates_at_once_are_not_checked_against_nothing(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    assert (await group.row()).contract is not None
    with pytest.raises(CheckAgain, match="arrived while this one was validated"):
        await group.upload("w2", 2.0, checked_against=None)


async def test_an_update_whose_file_is_not_there_is_refused(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    with pytest.raises(ArtifactError, match="was not uploaded"):
        await group.upload("w1", 1.0, model_digest="0" * 64)
    assert await group.updates(1) == []


async def test_a_refused_update_is_remembered_with_its_reason_and_told_in_the_version(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    row = await group.row()
    for reason in ("NaN in lora_A", "NaN in lora_B"):
        refused = Refused("bad", 5, 10, 999, reason)
        await lab.core.write(partial(acceptance.reject, row=row, refused=refused, now=lab.clock.wall))
    await group.upload("w1", 1.0)
    await group.upload("w2", 2.0)
    await keep(lab.core)
    refusals = (await group.version()).refused
    assert [(each.worker, each.reason) for each in refusals] == [("bad", "NaN in lora_B")]


async def test_cancelling_puts_aside_what_has_come(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    await service.cancel(lab.core, lab.admin, group.id)
    (put_aside,) = await group.updates(1)
    assert (put_aside.state, put_aside.reason) == ("discarded", "The federation was cancelled.")
    ended = await group.round()
    assert (ended.status, ended.reason) == ("abandoned", "federation_ended")
    with pytest.raises(GoneError):
        await group.upload("w2", 2.0)


async def test_a_member_keeps_what_it_has_brought(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0, num_examples=30)
    await group.upload("w1", 2.0, num_examples=12)
    (member,) = (await service.get(lab.core, lab.admin, group.id)).member_list
    assert (member.updates, member.num_examples, member.step, member.round) == (2, 42, 200, 1)


async def test_an_update_of_other_values_is_another_one(lab: Lab, tmp_path: Path) -> None:
    group = await party(lab, tmp_path / "files")
    await group.upload("w1", 1.0)
    changed = adapter(1.0)
    next(iter(changed.values()))[0, 0] = 1.25
    assert (await group.upload("w1", changed)).counted
    total = await lab.core.read(lambda connection: federation_updates.count(connection, group.made.number))
    assert total == 2


def _close(connection: Connection, seq: int, now: float) -> RoundRow:
    row = federations.by_seq(connection, seq, lock=True)
    assert row is not None
    return rounds.close_now(connection, row, now)
