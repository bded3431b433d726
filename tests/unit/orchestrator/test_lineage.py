"""Which points count: what a resume repeats is hidden, and what led to a checkpoint counts, wherever it lies."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.orchestrator.journalled import launch, metric, read
from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.schemas.worker_link import Offer


async def test_a_resume_hides_what_it_repeats(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    worker, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), *(metric(s, loss=1.0) for s in range(1, 16))])
    await lab.journal(offer.token, "l2", [launch("l2", 10), *(metric(s, loss=2.0) for s in range(11, 21))])
    view = await read(lab, offer.task_id)
    assert [point.step for point in view.points] == list(range(1, 21))
    assert [point.values["loss"] for point in view.points] == [1.0] * 10 + [2.0] * 10
    # A third launch, of another attempt, goes back further.
    await worker.finish(offer.token, "failed", "crashed")
    again = await worker.start()
    await lab.journal(again.token, "l3", [launch("l3", 5), *(metric(s, loss=3.0) for s in range(6, 13))])
    view = await read(lab, offer.task_id)
    assert [point.step for point in view.points] == list(range(1, 13))
    assert [point.values["loss"] for point in view.points] == [1.0] * 5 + [3.0] * 7


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=6))
async def test_the_series_tiles_the_run_however_often_it_was_resumed(
    lab: Lab, running: tuple[FakeWorker, Offer], crashes: list[tuple[int, int]]
) -> None:
    """Each launch runs some steps and dies; the next one resumes somewhere before that, or from zero."""
    _, offer = running
    run = f"{hash(tuple(crashes)) & 0xFFFFFFFF:x}"
    at, expected = 0, {}
    for number, (length, back) in enumerate(crashes):
        start = max(0, at - back)
        expected = {step: value for step, value in expected.items() if step <= start}
        here = [metric(step, loss=float(number)) for step in range(start + 1, start + length + 1)]
        expected |= {record["step"]: float(number) for record in here}
        await lab.journal(offer.token, f"{run}-{number}", [launch(f"{run}-{number}", start), *here])
        at = start + length
    # What other examples left behind is hidden by the first launch of this one, which starts from zero.
    view = await read(lab, offer.task_id)
    assert {point.step: point.values["loss"] for point in view.points} == expected
    assert [point.step for point in view.points] == list(range(1, at + 1))


async def test_what_led_to_a_checkpoint_counts_again_when_a_training_goes_on_from_it(
    lab: Lab, running: tuple[FakeWorker, Offer]
) -> None:
    """A worker trains, another one begins anew and is lost, and the first one goes on from what it still has."""
    _, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), *(metric(s, loss=1.0) for s in range(1, 12))])
    await lab.journal(offer.token, "l2", [launch("l2"), metric(1, loss=2.0), metric(2, loss=2.0)])
    view = await read(lab, offer.task_id)
    assert [(point.step, point.values["loss"]) for point in view.points] == [(1, 2.0), (2, 2.0)]
    await lab.journal(offer.token, "l3", [launch("l3", 10, "l1"), metric(11, loss=3.0)])
    view = await read(lab, offer.task_id)
    assert [point.step for point in view.points] == list(range(1, 12))
    assert [point.values["loss"] for point in view.points] == [1.0] * 10 + [3.0]
    # Then the other one again, and at last one that does not say from what it goes on.
    await lab.journal(offer.token, "l4", [launch("l4", 1, "l2"), metric(2, loss=4.0), metric(3, loss=4.0)])
    await lab.journal(offer.token, "l5", [launch("l5", 2, "of another task"), metric(3, loss=5.0)])
    view = await read(lab, offer.task_id)
    assert [(point.step, point.values["loss"]) for point in view.points] == [(1, 2.0), (2, 4.0), (3, 5.0)]


async def test_a_launch_that_only_delivers_hides_nothing(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), *(metric(s, loss=1.0) for s in range(1, 16))])
    await lab.journal(offer.token, "l2", [launch("l2", 10, "l1"), *(metric(s, loss=2.0) for s in range(11, 21))])
    await lab.journal(offer.token, "l3", [launch("l3", 20)])
    view = await read(lab, offer.task_id)
    assert [point.values["loss"] for point in view.points] == [1.0] * 10 + [2.0] * 10


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(1, 3), st.booleans()), min_size=1, max_size=8
    )
)
async def test_the_series_is_that_of_the_checkpoints_wherever_they_lie(
    lab: Lab, running: tuple[FakeWorker, Offer], plan: list[tuple[int, int, int, bool]]
) -> None:
    """Each launch goes on from any checkpoint that was ever made, or from the last step, or anew; it saves at times."""
    _, offer = running
    run = f"{hash(tuple(plan)) & 0xFFFFFFFF:x}"
    made: list[tuple[str | None, int, dict[int, float]]] = []
    series: dict[int, float] = {}
    reached = 0
    for number, (choice, length, every, silent) in enumerate(plan):
        parent, start, before = made[choice % len(made)] if made and choice < 8 else (None, 0, {})
        if silent:
            # It goes on from the last step of the launch before it, and says nothing else.
            parent, start, before = None, reached, series
        series = dict(before)
        records = [launch(f"{run}-{number}", start, parent)]
        for step in range(start + 1, start + length + 1):
            series[step] = float(number)
            records.append(metric(step, loss=float(number)))
            if step % every == 0:
                made.append((f"{run}-{number}", step, dict(series)))
        reached = start + length
        await lab.journal(offer.token, f"{run}-{number}", records)
    view = await read(lab, offer.task_id)
    assert {point.step: point.values["loss"] for point in view.points} == series
    assert len(view.points) == len(series)
