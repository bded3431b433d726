"""However long a run reports, so many of its points are kept: the newest as they came, the older ones evenly spread."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.unit.orchestrator.journalled import launch, metric, read
from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.db.repositories import journal
from tunefleet.db.tables.core import metric_points
from tunefleet.orchestrator.telemetry import journal_limits, live_feed
from tunefleet.schemas.worker_link import Offer

KEPT = 1000


@pytest.fixture
def few(lab: Lab) -> None:
    lab.core.settings = lab.core.settings.model_copy(update={"series_points": KEPT})


async def stored(lab: Lab, series: str = "train") -> int:
    query = select(func.count()).where(metric_points.c.series == series)
    return int(await lab.core.read(lambda connection: connection.execute(query).scalar() or 0))


async def send(lab: Lab, offer: Offer, records: list[dict[str, Any]], cursor: int, batch: int = 400) -> int:
    for start in range(0, len(records), batch):
        cursor = await lab.journal(offer.token, "l1", records[start : start + batch], from_seq=cursor)
    return cursor


@pytest.mark.parametrize(("cursor", "times"), [(0, 0), (999, 0), (1000, 1), (1249, 1), (1250, 2), (5_000_000, 19_997)])
def test_a_launch_is_thinned_each_time_that_a_quarter_of_the_limit_has_come(cursor: int, times: int) -> None:
    assert journal_limits.times_thinned(cursor, KEPT) == times


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [900, 1300, 4000, 20_000])
async def test_the_newest_points_stay_as_they_came_and_older_ones_are_even(
    lab: Lab, running: tuple[FakeWorker, Offer], count: int
) -> None:
    _, offer = running
    await send(lab, offer, [launch("l1"), *(metric(step) for step in range(1, count))], 0)
    assert await stored(lab) <= KEPT + 400, "and a batch"
    steps = [point.step for point in (await read(lab, offer.task_id)).points]
    assert steps[-1] == count - 1
    assert steps[0] == 1
    newest = steps[-KEPT // 8 :]
    assert newest == list(range(newest[0], count))
    gaps = Counter(b - a for a, b in pairwise(steps))
    widest = max(gaps)
    assert widest <= max(1, 2 * 2 * count // KEPT), "the beginning is as fine as the middle"
    assert count > KEPT or widest == 1


@pytest.mark.usefixtures("few")
async def test_what_is_seldom_stays_beside_what_is_often(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    records: list[dict[str, Any]] = [launch("l1")]
    for step in range(1, 4001):
        records.append(metric(step))
        if step % 200 == 0:
            records.append(metric(step, eval_loss=0.5))
            records.append({"type": "checkpoint", "step": step, "name": f"c-{step}", "digest": "d", "size_bytes": 1})
        if step % 100 == 0:
            records.append({**metric(step, loss=0.1), "series": "second"})
    await send(lab, offer, records, 0)
    losses = [point.step for point in (await read(lab, offer.task_id, names=["eval_loss"])).points]
    assert losses == list(range(200, 4001, 200))
    assert await stored(lab, "second") == 40
    kept = await lab.core.read(lambda connection: journal.records_of(connection, offer.task_id, "checkpoint"))
    assert len(kept) == 20, "what is no point is never thinned"


@pytest.mark.usefixtures("few")
async def test_of_curves_that_take_turns_each_keeps_its_points(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    records: list[dict[str, Any]] = [launch("l1")]
    for step in range(1, 2001):
        records += [metric(step, loss=0.5), metric(step, reward=0.5)]
    await send(lab, offer, records, 0)
    found = [len((await read(lab, offer.task_id, names=[name])).points) for name in ("loss", "reward")]
    assert min(found) > KEPT // 4
    assert abs(found[0] - found[1]) <= 2


@pytest.mark.usefixtures("few")
async def test_a_limit_that_was_lowered_thins_what_came_before(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    lab.core.settings = lab.core.settings.model_copy(update={"series_points": 100 * KEPT})
    cursor = await send(lab, offer, [launch("l1"), *(metric(step) for step in range(1, 5000))], 0)
    assert await stored(lab) == 4999
    lab.core.settings = lab.core.settings.model_copy(update={"series_points": KEPT})
    await send(lab, offer, [metric(step) for step in range(5000, 5400)], cursor)
    assert await stored(lab) <= KEPT + 400


@pytest.mark.usefixtures("few")
async def test_a_chart_that_was_looked_at_before_shows_what_is_left(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    _, offer = running
    cursor = await send(lab, offer, [launch("l1"), *(metric(step) for step in range(1, 900))], 0)
    assert len((await read(lab, offer.task_id, max_points=2000)).points) == 899
    await send(lab, offer, [metric(step) for step in range(900, 4000)], cursor)
    view = await read(lab, offer.task_id, max_points=2000)
    assert view.total == len(view.points) == await stored(lab)


@pytest.mark.usefixtures("few")
async def test_one_event_says_from_when_on_points_are_thinned(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    await send(lab, offer, [launch("l1"), *(metric(step) for step in range(1, 4000))], 0)
    told = await live_feed.events_after(lab.core, lab.admin, 0, kinds=["task.message"])
    (said,) = [each.data for each in told if each.data.get("name") == "metrics.thinned"]
    assert "1,000 points (TUNEFLEET_SERIES_POINTS)" in said["message"]
