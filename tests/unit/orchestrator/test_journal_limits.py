"""Whatever is written into a task's journals, so much of it is kept, and one event says what more was left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
import pytest
from sqlalchemy import Table, func, select

from tests.unit.orchestrator.journalled import launch, metric, read
from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.db.repositories import journal, training_protocol
from tunefleet.db.tables.core import journal_records, launches, metric_points
from tunefleet.db.tables.operations import reported_predictions
from tunefleet.errors import InputError
from tunefleet.orchestrator.telemetry import journal_limits, live_feed
from tunefleet.orchestrator.training_protocol import job_metrics, predictions, registered_jobs
from tunefleet.schemas.training_protocol.jobs import JobRegistration
from tunefleet.schemas.training_protocol.reports import PredictionItem, ReportedPoint
from tunefleet.schemas.worker_link import Offer

LONG = "n" * 257
WIDE = {f"v{number}": 1.0 for number in range(5_000)}


def event(number: int) -> dict[str, Any]:
    return {"type": "event", "name": f"e{number}", "message": "m", "level": "info"}


async def told(lab: Lab, task_id: str) -> list[str]:
    """Return the names of the warnings that a task's history has, in their order."""
    page = await live_feed.events_after(lab.core, lab.admin, 0, kinds=["task.message"])
    return [each.data["name"] for each in page if each.task_id == task_id and each.data["level"] == "warning"]


async def count(lab: Lab, table: Table) -> int:
    return int(await lab.core.read(lambda connection: connection.execute(select(func.count()).select_from(table))
                                   .scalar_one()))  # fmt: skip


async def kept(lab: Lab, task_id: str) -> journal.JournalTotalsRow:
    found = await lab.core.read(partial(journal.totals, task_id=task_id))
    assert found is not None
    return found


async def send(lab: Lab, offer: Offer, records: Sequence[dict[str, Any]], at_once: int = 3) -> None:
    for start in range(0, len(records), at_once):
        await lab.journal(offer.token, "l1", list(records[start : start + at_once]), from_seq=start)


@pytest.mark.parametrize(
    ("limits", "records", "stored", "said"),
    [
        ({}, [launch("l1"), metric(1), event(1)], (1, 2), []),
        ({"RECORDS": 2}, [launch("l1"), *map(event, range(5)), metric(1)], (1, 3), ["journal.full"]),
        ({"RECORDS": 2}, [launch("l1"), *([launch("l1")] * 6), metric(1)], (1, 3), ["journal.full"]),
        ({"RECORDS": 2}, [{**launch("l1"), "x": "y" * 1_100}] * 5, (0, 2), ["journal.full"]),
        ({"RECORDS": 2}, [{"type": "progress", "phase": "p" * 4_097}] * 5, (0, 2), ["journal.full"]),
        ({"RECORDS": 2}, [{"type": "k" * 65}] * 5, (0, 2), ["journal.full"]),
        ({"RECORD_CHARACTERS": 300}, [launch("l1"), *map(event, range(9))], (0, 5), ["journal.full"]),
        ({"SERIES": 2}, [{**metric(n), "series": f"s{n % 5}"} for n in range(1, 20)], (8, 0), ["metrics.series"]),
        ({}, [{**metric(1), "series": LONG}, metric(2)] * 3, (3, 0), ["metrics.series"]),
        ({}, [metric(1, **{LONG: 1.0}), metric(1, loss=LONG), metric(2)], (3, 0), ["metrics.narrowed"]),
        ({}, [metric(1, **WIDE), metric(2, **WIDE)], (2, 0), ["metrics.narrowed"]),
        (
            {"_LEAST_CHARACTERS": 0, "POINT_CHARACTERS": 0.005},
            [metric(n, loss=1.0) for n in range(1, 30)],
            (9, 0),
            ["metrics.full"],
        ),
    ],
)
async def test_what_is_beyond_a_limit_is_left_out_and_said_once(
    lab: Lab,
    running: tuple[FakeWorker, Offer],
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
    records: list[dict[str, Any]],
    stored: tuple[int, int],
    said: list[str],
) -> None:
    _, offer = running
    for name, limit in limits.items():
        monkeypatch.setattr(journal_limits, name, limit)
    await send(lab, offer, records)
    assert (await count(lab, metric_points), await count(lab, journal_records)) == stored
    assert await told(lab, offer.task_id) == said


async def test_of_a_wide_point_the_first_values_are_kept_and_those_whose_names_fit(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    _, offer = running
    await send(lab, offer, [launch("l1"), metric(1, **{LONG: 1.0}, loss=2.0, note=LONG), metric(2, **WIDE)])
    rows = await lab.core.read(partial(journal.newest_values, task_id=offer.task_id, series="train", limit=2))
    wide, narrow = (orjson.loads(values) for _, values in rows)
    assert narrow == {"loss": 2.0}
    assert list(wide) == list(WIDE)[: journal_limits.VALUES]


async def test_of_a_task_so_many_launches_are_kept_and_the_shipper_comes_to_its_end(
    lab: Lab, running: tuple[FakeWorker, Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, offer = running
    monkeypatch.setattr(journal_limits, "LAUNCHES", 2)
    for number in range(5):
        name = f"l{number}"
        assert await lab.journal(offer.token, name, [launch(name), metric(number + 1)]) == 2
    assert (await count(lab, launches), await count(lab, metric_points)) == (2, 2)
    assert await told(lab, offer.task_id) == ["journal.launches"]
    with pytest.raises(InputError, match="more than 256 characters"):
        await lab.journal(offer.token, LONG, [launch(LONG)])


async def test_points_that_are_thinned_count_no_more(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    lab.core.settings = lab.core.settings.model_copy(update={"series_points": 1_000})
    await send(lab, offer, [launch("l1"), *(metric(step, loss=1.0) for step in range(1, 3_000))], 400)
    each = journal.POINT_CHARACTERS + len("train") + len('{"loss":1.0}')
    row = await kept(lab, offer.task_id)
    assert row.point_characters == each * await count(lab, metric_points)
    assert (row.records, row.characters, row.series) == (0, 0, '["train"]')


async def test_nothing_is_left_of_the_room_of_a_task_that_is_removed(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    worker, offer = running
    await send(lab, offer, [launch("l1"), metric(1)])
    await worker.finish(offer.token)
    await lab.core.write(partial(journal.delete_of_tasks, task_ids=[offer.task_id]))
    assert await lab.core.read(partial(journal.totals, task_id=offer.task_id)) is None


async def registered(lab: Lab) -> tuple[str, str]:
    made = await registered_jobs.register(lab.core, lab.admin, JobRegistration(job_id="job-000001", status="running"))
    return made.job_id, made.job_token


def said(step: int, index: int = 0, **more: Any) -> PredictionItem:
    return PredictionItem(step=step, sample_index=index, prompt="p", prediction="o", **more)


async def test_predictions_are_stored_once_whatever_else_is_said_of_them(lab: Lab) -> None:
    job_id, token = await registered(lab)
    who = await lab.attempt(token)
    for reported in ([said(1), said(1), said(2)], [said(2), said(1, ground_truth="o")], [said(2, 1), said(3)]):
        await predictions.report(lab.core, who, reported)
    page = await predictions.page(lab.core, lab.admin, job_id, epoch=None, limit=2, offset=1)
    assert [(each["step"], each["sample_index"]) for each in page.predictions] == [(2, 0), (2, 1)]
    assert (page.total_count, page.epoch_count, await count(lab, reported_predictions)) == (4, 1, 4)
    told_of = await predictions.epochs(lab.core, lab.admin, job_id)
    assert [(each["step"], each["prediction_count"]) for each in told_of.epochs] == [(1, 1), (2, 2), (3, 1)]


async def test_a_report_reads_none_of_the_predictions_that_are_stored(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = await registered(lab)
    who = await lab.attempt(token)
    await predictions.report(lab.core, who, [said(1)])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(training_protocol, "predictions", refuse)
    await predictions.report(lab.core, who, [said(1), said(2)])
    assert await count(lab, journal_records) == 2


async def test_who_follows_predictions_gets_them_piece_by_piece(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, token = await registered(lab)
    monkeypatch.setattr(predictions, "PIECE", 2)
    await predictions.report(lab.core, await lab.attempt(token), [said(step) for step in range(5)])
    mark, steps = None, []
    while found := (await predictions.after(lab.core, lab.admin, job_id, mark))[1]:
        assert len(found) <= 2
        mark = found[-1][0]
        steps += [view["step"] for _, view in found]
    assert steps == list(range(5))


@pytest.mark.parametrize(
    ("limits", "event"),
    [({"RECORDS": 2}, "journal.full"), ({"_LEAST_CHARACTERS": 0, "POINT_CHARACTERS": 0.002}, "metrics.full")],
)
async def test_what_a_job_reports_is_held_to_the_same_limits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], event: str
) -> None:
    job_id, token = await registered(lab)
    who = await lab.attempt(token)
    for name, limit in limits.items():
        monkeypatch.setattr(journal_limits, name, limit)
    for step in range(10):
        await predictions.report(lab.core, who, [said(step)])
        await job_metrics.report(lab.core, who, [ReportedPoint(step=step, train_loss=1.0)])
    assert await told(lab, job_id) == [event]
    assert min(await count(lab, journal_records), await count(lab, metric_points)) < 6


@pytest.mark.parametrize("written", [lambda: "NaN", lambda: None, lambda: True])
async def test_what_trainings_write_is_kept_as_it_is(
    lab: Lab, running: tuple[FakeWorker, Offer], written: Callable[[], Any]
) -> None:
    """An lm-eval group with a value for each of two thousand tasks, and a trainer with a hundred series."""
    _, offer = running
    group = {f"group.task_{number}.exact_match,custom-extract": 0.5 for number in range(2_000)}
    records = [launch("l1"), {**metric(1, **group), "series": "evaluation"}, metric(1, loss=written())]
    records += [{**metric(1), "series": f"train-{number}"} for number in range(2, 100)]
    await send(lab, offer, records, 50)
    assert await told(lab, offer.task_id) == []
    assert len((await read(lab, offer.task_id, series="evaluation")).names) == 2_000
    assert len(json.loads((await kept(lab, offer.task_id)).series)) == 100
