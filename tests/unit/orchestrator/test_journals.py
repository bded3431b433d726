"""Journals and logs: each record once, a gap refused, and series thinned."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.orchestrator.journalled import launch, metric, read
from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.db import Connection
from tunefleet.db.repositories import journal
from tunefleet.errors import ConflictError, NotFoundError, OffsetConflict
from tunefleet.observability.logs import scrub, scrub_bytes
from tunefleet.orchestrator.tasks import tasks
from tunefleet.orchestrator.telemetry import ingest, journal_limits, live_feed, logs, series
from tunefleet.orchestrator.telemetry.curves import Column, Curves, downsample
from tunefleet.schemas.worker_link import JournalBatch, Offer


async def steps(lab: Lab, task_id: str, **how: Any) -> list[int]:
    return [point.step for point in (await read(lab, task_id, **how)).points]


async def test_an_overlap_is_trimmed_and_a_gap_is_refused(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    records = [launch("l1"), *(metric(step) for step in range(1, 10))]
    assert await lab.journal(offer.token, "l1", records[:4]) == 4
    assert await lab.journal(offer.token, "l1", records[2:7], from_seq=2) == 7
    assert await lab.journal(offer.token, "l1", records[:4]) == 7
    with pytest.raises(OffsetConflict) as caught:
        await lab.journal(offer.token, "l1", records[8:], from_seq=8)
    assert caught.value.cursor == 7
    with pytest.raises(OffsetConflict) as caught:
        await lab.journal(offer.token, "unheard", records[8:], from_seq=8)
    assert caught.value.cursor == 0
    assert await lab.journal(offer.token, "l1", records[7:], from_seq=7) == 10
    assert await steps(lab, offer.task_id) == list(range(1, 10))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=12))
async def test_whatever_is_delivered_twice_or_out_of_turn_is_stored_once(
    lab: Lab, running: tuple[FakeWorker, Offer], cuts: list[tuple[int, int]]
) -> None:
    _, offer = running
    name = f"l{len(json.dumps(cuts))}-{hash(tuple(cuts)) & 0xFFFFFF}"
    records = [launch(name), *(metric(step) for step in range(1, 30))]
    cursor = 0
    for start, length in cuts:
        batch = records[start : start + length]
        if not batch:
            continue
        if start > cursor:
            with pytest.raises(OffsetConflict) as caught:
                await lab.journal(offer.token, name, batch, from_seq=start)
            assert caught.value.cursor == cursor
        else:
            cursor = max(cursor, await lab.journal(offer.token, name, batch, from_seq=start))
    await lab.journal(offer.token, name, records[cursor:], from_seq=cursor)
    assert await steps(lab, offer.task_id) == list(range(1, 30))


@pytest.mark.parametrize("limit", ["RECORDS", "RECORD_CHARACTERS"])
async def test_of_other_records_so_many_are_kept_and_an_event_says_so(
    lab: Lab, running: tuple[FakeWorker, Offer], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    _, offer = running
    record = {"type": "event", "name": "x", "message": "m", "level": "info"}
    monkeypatch.setattr(
        journal_limits, limit, {"RECORDS": 11, "RECORD_CHARACTERS": 10 * len(json.dumps(record))}[limit]
    )
    records = [launch("l1"), *([record] * 8), metric(1), *([record] * 8), metric(2), record]
    cursor = 0
    while cursor < len(records):
        cursor = await lab.journal(offer.token, "l1", records[cursor : cursor + 3], from_seq=cursor)
    assert cursor == len(records)
    assert await steps(lab, offer.task_id) == [1, 2]
    kept = await lab.core.read(partial(journal.totals, task_id=offer.task_id))
    assert kept is not None
    assert 8 <= kept.records <= 12
    page = await live_feed.events_after(lab.core, lab.admin, 0)
    told = [each.data for each in page if each.kind == "task.message" and each.task_id == offer.task_id]
    assert sum(each["name"] == "journal.full" for each in told) == 1
    assert len(told) <= 12


async def test_an_older_launch_may_still_be_shipped_by_a_new_attempt(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    worker, offer = running
    records = [launch("l1"), *(metric(s, loss=1.0) for s in range(1, 11))]
    await lab.journal(offer.token, "l1", records[:6])
    await worker.finish(offer.token, "failed", "killed")
    again = await worker.start()
    await lab.journal(again.token, "l2", [launch("l2", 10), metric(11, loss=2.0)])
    await lab.journal(again.token, "l1", records[6:], from_seq=6)
    assert await steps(lab, offer.task_id) == list(range(1, 12))


async def test_values_of_one_step_are_one_point_and_the_newer_launch_counts(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    _, offer = running
    first = [launch("l1"), {**metric(5, loss=1.0), "window": [1, 5], "epoch": 0.5}, metric(5, eval_loss=3.0)]
    await lab.journal(offer.token, "l1", first)
    await lab.journal(offer.token, "l2", [launch("l2", 5), metric(5, eval_loss=2.5), metric(6, loss=float(6))])
    view = await read(lab, offer.task_id)
    assert [(p.step, p.values) for p in view.points] == [(5, {"loss": 1.0, "eval_loss": 2.5}), (6, {"loss": 6.0})]
    assert view.points[0].window == (1, 5)
    assert view.points[0].epoch == 0.5
    assert view.names == ("eval_loss", "loss")
    only = await read(lab, offer.task_id, names=["eval_loss"])
    assert [p.values for p in only.points] == [{"eval_loss": 2.5}]
    assert await steps(lab, offer.task_id, after_step=5) == [6]


async def test_a_second_series_stands_apart(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), metric(1), {**metric(1, loss=9.0), "series": "train-2"}])
    assert [p.values for p in (await read(lab, offer.task_id)).points] == [{"loss": 1.0}]
    other = await read(lab, offer.task_id, series="train-2")
    assert [p.values for p in other.points] == [{"loss": 9.0}]


async def test_what_cannot_be_read_is_kept_and_refuses_nothing(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    lines = (
        json.dumps({"seq": 0, "at": 1.0, **launch("l1")}), "{torn", "[]", '{"type": "metric", "step": "x"}',
        '{"no": "type"}', '{"type": "of_a_newer_version"}', json.dumps({"seq": 6, "at": 1.0, **metric(1, loss="NaN")}),
    )  # fmt: skip
    batch = JournalBatch(launch="l1", from_seq=0, lines=lines)
    cursor = await ingest.ingest(lab.core, await lab.attempt(offer.token), batch)
    assert cursor.cursor == len(lines)
    view = await read(lab, offer.task_id)
    assert [p.values for p in view.points] == [{"loss": "NaN"}]


async def test_long_batches_are_taken_too(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), *(metric(step) for step in range(1, 1001))])
    assert await steps(lab, offer.task_id) == list(range(1, 1001))
    few = await read(lab, offer.task_id, max_points=50)
    assert (len(few.points), few.total) == (50, 1000)


async def test_what_a_job_takes_of_its_machine_is_a_series_of_its_own(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    _, offer = running

    def progress(at: float, **values: Any) -> dict[str, Any]:
        return {"type": "progress", "phase": "training", "step": int(at), "max_steps": 99, "at": at, **values}

    first = [progress(float(at), rss_bytes=at * 10, eta_s=1.0) for at in range(1, 41)]
    odd = [progress(50.0), {**progress(50.0, rss_bytes=1), "at": "soon"}, progress(51.0, rss_bytes="much", gpu_bytes=7)]
    await lab.journal(offer.token, "l1", [launch("l1"), metric(1), *first[:20]])
    await lab.journal(offer.token, "l1", [*first[20:], *odd], from_seq=22)
    view = await read(lab, offer.task_id, series="system", max_points=100)
    assert [(point.step, point.values) for point in view.points] == [
        (1, {"rss_bytes": 10}),
        (15, {"rss_bytes": 150}),
        (30, {"rss_bytes": 300}),
        (51, {"gpu_bytes": 7}),
    ]
    assert [told.series for told in await series.names_of(lab.core, lab.admin, offer.task_id)] == ["system", "train"]
    await lab.journal(offer.token, "l2", [launch("l2", 20), progress(60.0, rss_bytes=5)])
    after = await read(lab, offer.task_id, series="system")
    assert [point.step for point in after.points] == [1, 15, 60]


async def test_a_thinned_series_is_the_series_however_it_came_and_was_looked_at(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    _, offer = running

    async def check() -> None:
        for names in (None, ["loss"], ["eval_loss", "grad_norm"], ["nothing"]):
            for after, to in ((None, None), (20, None), (None, 70), (20, 70), (70, 20)):
                cut = {"names": names, "after_step": after, "to_step": to}
                whole = await read(lab, offer.task_id, **cut)  # type: ignore[arg-type]
                same = await read(lab, offer.task_id, max_points=1000, **cut)  # type: ignore[arg-type]
                assert same == whole
                few = await read(lab, offer.task_id, max_points=10, **cut)  # type: ignore[arg-type]
                assert (few.total, few.names) == (whole.total, whole.names)
                assert len(few.points) == min(10, whole.total)
                assert all(point in whole.points for point in few.points)

    def record(step: int) -> dict[str, Any]:
        odd: dict[int, dict[str, Any]] = {7: {"loss": "NaN"}, 8: {"loss": 10**400}, 9: {"loss": None}, 10: {}}
        return {"type": "metric", "step": step, "epoch": step / 50, "window": [step, step]} | {
            "values": odd.get(step, {"loss": 100.0 / step, "grad_norm": math.sin(step)})
        }

    def held_out(step: int) -> dict[str, Any]:
        return {"type": "metric", "step": step, "values": {"eval_loss": float(step)}}

    steps = [
        each for step in range(1, 61) for each in ([record(step), held_out(step)] if step % 9 == 0 else [record(step)])
    ]
    await lab.journal(offer.token, "l1", [launch("l1"), *steps])
    await check()
    again = [record(step) for step in range(40, 100)]
    await lab.journal(offer.token, "l2", [launch("l2", 40), *again, held_out(54)])
    await check()
    await lab.journal(offer.token, "l2", [record(step) for step in range(100, 120)], from_seq=len(again) + 2)
    await check()
    (told,) = await series.names_of(lab.core, lab.admin, offer.task_id)
    assert (told.series, told.names) == ("train", ("eval_loss", "grad_norm", "loss"))
    assert (told.first_step, told.last_step) == (1, 119)
    with pytest.raises(NotFoundError):
        await series.names_of(lab.core, lab.admin, "task-ffffffffffff")


async def test_what_is_kept_of_curves_is_bounded(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), *(metric(n) for n in range(1, 101))])
    known = Curves(most_numbers=50)
    for name in (offer.task_id, "another", "a third"):
        curve = await lab.core.read(partial(known.of, task_id=name, series="train"))
        assert len(curve.steps) == (100 if name == offer.task_id else 0)
    assert offer.task_id not in known._tasks


async def test_events_checkpoints_and_progress_are_told_once(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    records = [
        launch("l1"),
        {"type": "event", "name": "note", "message": "fetched https://bob:pw@host/x", "data": {"n": 1}},
        {"type": "checkpoint", "step": 5, "name": "checkpoint-5", "digest": "d", "size_bytes": 10},
        {"type": "progress", "phase": "training", "step": 5, "max_steps": 9, "tokens_per_s": 12.5},
    ]
    for _ in range(2):
        await lab.journal(offer.token, "l1", records)
    told = await live_feed.events_after(lab.core, lab.admin, 0, kinds=["task.message", "checkpoint.saved"])
    assert [(e.kind, e.task_id) for e in told] == [("task.message", offer.task_id), ("checkpoint.saved", offer.task_id)]
    assert "bob" not in told[0].data["message"]
    assert told[1].data["step"] == 5
    progress = (await lab.task(offer.task_id)).progress
    assert progress is not None
    assert (progress.phase, progress.step, progress.max_steps, progress.tokens_per_s) == ("training", 5, 9, 12.5)


async def test_nothing_new_is_taken_of_an_attempt_that_ended(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    worker, offer = running
    attempt = await lab.attempt(offer.token)
    records = [launch("l1"), metric(1)]
    await lab.journal(offer.token, "l1", records)
    await logs.append(lab.core, attempt, 0, b"hello")
    await worker.finish(offer.token)
    assert await lab.journal(offer.token, "l1", records) == 2
    assert (await logs.append(lab.core, attempt, 0, b"hello")).cursor == 5
    with pytest.raises(ConflictError):
        await lab.journal(offer.token, "l1", [metric(2)], from_seq=2)
    with pytest.raises(ConflictError):
        await logs.append(lab.core, attempt, 5, b" more")


async def test_a_log_is_continued_where_it_ends(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    worker, offer = running
    attempt = await lab.attempt(offer.token)
    assert (await logs.append(lab.core, attempt, 0, b"one\ntw")).cursor == 6
    assert (await logs.append(lab.core, attempt, 4, b"two\n")).cursor == 8
    with pytest.raises(OffsetConflict) as caught:
        await logs.append(lab.core, attempt, 9, b"x")
    assert caught.value.cursor == 8
    await worker.finish(offer.token, "failed", "crashed")
    again = await worker.start()
    await logs.append(lab.core, await lab.attempt(again.token), 0, b"three\n")
    view = await logs.read(lab.core, lab.admin, offer.task_id)
    assert view.text == "one\ntwo\n\n--- attempt 2 on w1 ---\nthree\n"
    assert (view.size_bytes, view.next_offset, view.final) == (len(view.text), len(view.text), False)
    tail = await logs.read(lab.core, lab.admin, offer.task_id, tail_bytes=8)
    assert tail.text == "three\n"
    await worker.finish(again.token)
    assert (await logs.read(lab.core, lab.admin, offer.task_id, offset=4)).final


async def test_a_log_is_read_in_whole_characters(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    text = "größer 🚀 als 64 KiB\n" * 6000
    await logs.append(lab.core, await lab.attempt(offer.token), 0, text.encode())
    pieces, offset = [], 0
    while True:
        view = await logs.read(lab.core, lab.admin, offer.task_id, offset=offset, limit_bytes=4099)
        if not view.text:
            break
        pieces.append(view.text)
        offset = view.next_offset
    assert "".join(pieces) == text
    await tasks.get(lab.core, lab.admin, offer.task_id)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("clone https://user:secret@host/repo", "user:secret"),
        ("PUT /x?X-Amz-Signature=abcdef&b=1", "abcdef"),
        ("GET /x?a=1&token=t0ken done", "t0ken"),
        (f"key tf_{'a' * 40} used", "a" * 40),
        ("att-0123456789ab." + "0" * 32, "0" * 32),
    ],
)
def test_credentials_are_hidden_without_moving_the_rest(text: str, hidden: str) -> None:
    clean = scrub(text)
    assert hidden not in clean
    assert len(clean) == len(text)


@given(st.binary(max_size=300))
def test_scrubbing_keeps_the_length(data: bytes) -> None:
    assert len(scrub_bytes(data)) == len(data)


def test_plain_text_is_left_alone() -> None:
    text = "loss = 2.3 @ step 5, see https://host/path?a=1 and a@b.c // not a url"
    assert scrub(text) == text


def points(count: int) -> list[dict[str, float | str]]:
    return [{"loss": 5.0 - n / count, **({"eval": 1.0} if n % 100 == 0 else {})} for n in range(count)]


def columns(every: list[dict[str, float | str]]) -> dict[str, Column]:
    """Put values side by side as `services.curves` does."""
    names = {name for values in every for name in values}
    odd = {"NaN": math.inf}
    rows = {name: [values.get(name, math.nan) for values in every] for name in names}
    return {name: np.array([odd.get(str(value), value) for value in row], float) for name, row in rows.items()}


@given(count=st.integers(0, 400), room=st.integers(1, 120))
@settings(max_examples=60)
def test_down_sampling_keeps_within_its_bound_and_the_ends(count: int, room: int) -> None:
    every = points(count)
    few = downsample(columns(every), len(every), room)
    assert len(few) <= max(room, 0)
    assert few == sorted(set(few))
    if count and room >= 3:
        assert few[0] == 0
        assert few[-1] == count - 1
    if count <= room:
        assert few == list(range(count))


def test_down_sampling_keeps_spikes_and_what_is_seldom() -> None:
    every = points(1000)
    every[537] = {"loss": 50.0}
    few = downsample(columns(every), len(every), 60)
    assert 537 in few
    assert [index for index in few if "eval" in every[index]] == list(range(0, 1000, 100))


def test_down_sampling_keeps_the_spike_of_each_of_many_values() -> None:
    names = [f"value-{number:02}" for number in range(20)]
    every: list[dict[str, float | str]] = [{name: math.sin(n) for name in names} for n in range(5000)]
    for number, name in enumerate(names):
        every[1000 + number * 37] = {**every[1000 + number * 37], name: 50.0}
    few = downsample(columns(every), len(every), 400)
    assert len(few) <= 400
    assert {1000 + number * 37 for number in range(20)} <= set(few)


def test_down_sampling_survives_what_is_no_number() -> None:
    every: list[dict[str, float | str]] = [{"loss": "NaN" if n % 2 else float("inf")} for n in range(100)]
    assert len(downsample(columns(every), len(every), 10)) == 10


@pytest.mark.parametrize(
    "record",
    [
        {"type": "metric", "step": 2**63, "values": {"loss": 1.0}},
        {"type": "metric", "step": 1e300, "values": {"loss": 1.0}},
        {"type": "metric", "step": 1, "window": [{}, {}], "values": {"loss": 1.0}},
        {"type": "event", "at": 2**64 - 1, "name": "x"},
        {"type": "launch", "from_step": 2**63},
        {"type": "launch", "checkpoint": {"a": 1}},
    ],
)
async def test_no_record_is_so_odd_that_it_holds_up_the_others(
    lab: Lab, running: tuple[FakeWorker, Offer], record: dict[str, Any]
) -> None:
    _, offer = running
    assert await lab.journal(offer.token, "l1", [record, metric(1)]) == 2
    assert 1 in await steps(lab, offer.task_id)
    assert await live_feed.events_after(lab.core, lab.admin, 0)


async def unreadable(lab: Lab, task_id: str) -> int:
    return len(await lab.core.read(lambda connection: journal.records_of(connection, task_id, "unreadable")))


@pytest.mark.parametrize(
    "change",
    [{"phase": None}, {"step": "x"}, {"step": 1e300}, {"at": 1e300}, {"at": -1.0}, {"eta_s": []}, {"rss_bytes": 1e300}],
)
async def test_progress_that_could_not_be_shown_is_kept_as_it_came_and_the_last_one_stays(
    lab: Lab, running: tuple[FakeWorker, Offer], change: dict[str, Any]
) -> None:
    _, offer = running
    good = {"type": "progress", "phase": "training", "step": 5, "at": 2.0}
    await lab.journal(offer.token, "l1", [launch("l1"), good, {**good, "step": 6, **change}])
    assert await unreadable(lab, offer.task_id) == 1
    told = await live_feed.progress(lab.core, lab.admin)
    assert (told[offer.task_id].progress.phase, told[offer.task_id].progress.step) == ("training", 5)


@pytest.mark.parametrize(
    "change", [{"at": 1e300}, {"at": "nan"}, {"at": -1}, {"values": {"loss": [1.0]}}, {"values": {"loss": {"a": 1.0}}}]
)
async def test_a_point_that_could_not_be_shown_is_kept_as_it_came(
    lab: Lab, running: tuple[FakeWorker, Offer], change: dict[str, Any]
) -> None:
    _, offer = running
    null = {"type": "metric", "step": 2, "values": {"loss": None, "eval_loss": 1.0}}
    await lab.journal(offer.token, "l1", [launch("l1"), {**metric(1), **change}, null])
    assert await unreadable(lab, offer.task_id) == 1
    told, _, _ = await live_feed.points(lab.core, offer.task_id, {})
    assert [(point.step, point.values) for point in told.points] == [(2, {"loss": "NaN", "eval_loss": 1.0})]
    assert await steps(lab, offer.task_id) == [2]


async def test_what_was_stored_before_it_was_checked_hides_nothing_else(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    _, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), metric(1)])

    def store(connection: Connection) -> None:
        (row,) = journal.launches_of(connection, offer.task_id)
        odd = '{"loss":[1.0],"eval_loss":2.0}'
        point = (row.task_id, row.number, row.cursor, "train", 2, None, 1.0, None, None, 0, odd)
        journal.add_records(connection, [point], [])
        journal.advance(connection, row, cursor=row.cursor + 1, progress='{"type":"progress","step":"x"}')

    await lab.core.write(store)
    assert (await lab.task(offer.task_id)).progress is None
    assert await live_feed.progress(lab.core, lab.admin) == {}
    told, _, _ = await live_feed.points(lab.core, offer.task_id, {})
    assert [point.values for point in told.points] == [{"loss": 1.0}, {"loss": "NaN", "eval_loss": 2.0}]
    assert [point.values for point in (await read(lab, offer.task_id)).points] == [each.values for each in told.points]
