"""What a load has lost, run twice or left, how it grows, and how it is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.libraries import required
from tunefleet.cli.console import say
from tunefleet.cli.local_cluster import simulate_views
from tunefleet.errors import InputError
from tunefleet.schemas.api import TaskView
from tunefleet.simulation import curves
from tunefleet.simulation.held_attempt import Trace
from tunefleet.simulation.load_report import (
    CrowdEnd,
    LoadResult,
    Report,
    Sample,
    ServerCost,
    rate,
    report_of,
    spread,
    tasks_to_inspect,
)
from tunefleet.simulation.plan import Plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def task(name: str, status: str = "completed", attempts: int = 1) -> TaskView:
    return TaskView(
        id=name, workflow_id="wf", name=name, kind="echo", status=status, owner="me", attempts=attempts, created_at=NOW
    )


def trace(name: str, offered_at: float = 1.0, outcome: Any = "completed") -> Trace:
    done = outcome is not None
    return Trace(name, 1, offered_at, offered_at + 0.1, offered_at + 1 if done else None, outcome)


PLAIN = {
    "exchanges": 10, "renewals": 6, "spoken_s": (0.01, 0.02), "lags_s": (0.001,), "cpu_share": 0.1, "rss_bytes": 1,
    "up_bytes": 1, "down_bytes": 1, "faults": 0, "last_fault": None, "foreign": (),
}  # fmt: skip


def found(
    tasks: list[TaskView],
    traces: list[Trace],
    ended: Any = "done",
    given_up: dict[tuple[str, int], float] | None = None,
    **more: Any,
) -> Report:
    end = CrowdEnd.model_validate({**PLAIN, "traces": traces, **more})
    plan = Plan(workers=2, tasks=len(tasks))
    return report_of(LoadResult(plan, "http", True, ended, 2.0, tasks, [end], {"wf": 0.5}, {"wf": 0.7}, given_up or {}))


def test_a_whole_load_has_lost_and_doubled_nothing() -> None:
    one = found([task("a"), task("b")], [trace("a"), trace("b", 2.0)])
    assert (one.completed, one.lost, one.doubled, one.left, one.retried) == (2, 0, 0, 0, 0)
    assert one.whole
    assert one.decisions_per_s == 1.0
    assert one.submit_to_offer.p50_ms == 500.0
    assert one.submit_to_finish.max_ms == 2500.0
    assert one.offer_to_accept.p99_ms == pytest.approx(100.0)
    assert (one.exchanges_per_s, one.renewals_per_s) == (5.0, 3.0)


@pytest.mark.parametrize("status", ["queued", "running", "failed"])
def test_what_the_server_does_not_list_as_completed_is_lost(status: str) -> None:
    one = found([task("a"), task("b", status)], [trace("a"), trace("b", outcome=None)])
    assert (one.lost, one.left, one.whole) == (1, 0, False)


def test_what_runs_when_a_load_is_ended_early_is_left_but_what_was_acknowledged_must_be_there() -> None:
    tasks = [task("a"), task("b", "running"), task("c", "queued")]
    assert (found(tasks, [trace("a")], "interrupted").lost, found(tasks, [trace("a")], "interrupted").left) == (0, 2)
    gone = found(tasks, [trace("a"), trace("c")], "time")
    assert (gone.lost, gone.left, gone.whole) == (1, 1, False)


def test_a_task_that_ended_well_twice_is_doubled_and_one_more_attempt_is_not() -> None:
    tasks = [task("a", attempts=2), task("b", attempts=2)]
    one = found(tasks, [trace("a"), trace("a", 3.0), trace("b", outcome=None), trace("b", 3.0)])
    assert (one.doubled, one.retried, one.lost, one.whole) == (1, 2, 0, False)


def test_what_a_worker_that_was_given_up_has_run_counts_for_nothing_and_is_said() -> None:
    ran = [trace("a"), trace("a", 3.0)._replace(attempt=2), trace("b"), trace("c")]
    tasks = [task("a", attempts=2), task("b", "queued"), task("c")]
    assert tasks_to_inspect(tasks, [CrowdEnd.model_validate({**PLAIN, "traces": ran})]) == ["a", "b"]
    one = found(tasks, ran, "time", given_up={("a", 1): 1.5, ("b", 1): 1.5})
    assert (one.doubled, one.for_nothing, one.lost, one.left, one.whole) == (0, 2, 0, 1, True)
    assert found(tasks, ran, "time", given_up={("b", 1): 1.5}).doubled == 1, "both ends of a were counted"
    late = found(tasks, ran, "time", given_up={("a", 1): 9.0, ("b", 1): 9.0})
    assert (late.doubled, late.lost) == (1, 1), "what was acknowledged before is lost if it is given up after"


def test_a_generator_that_is_late_says_so_and_so_do_foreign_tasks_and_faults() -> None:
    late = found([task("a")], [trace("a")], lags_s=(0.2, 0.3), faults=3, last_fault="away", foreign=("task-x",))
    assert late.generator.bottleneck
    assert len(late.warnings) == 3
    assert not found([task("a")], [trace("a")]).generator.bottleneck
    assert found([task("a")], [trace("a")], cpu_share=0.95).generator.bottleneck


def test_spreads_and_rates_of_little() -> None:
    assert spread([]).p50_ms is None
    assert spread([0.001 * number for number in range(1, 101)]).model_dump() == {
        "count": 100, "p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0, "max_ms": 100.0,
    }  # fmt: skip
    assert rate([1.0]) is None
    assert rate([1.0, 1.0]) is None


def _at(workers: int, mib: float) -> Report:
    one = found([task("a"), task("b")], [trace("a"), trace("b", 2.0)])
    cost = ServerCost(rss_start_bytes=1 << 20, rss_max_bytes=int(mib * (1 << 20)), cpu_share=0.5)
    samples = (Sample(at_s=0.0, rss_bytes=1 << 20), Sample(at_s=1.0, rss_bytes=2 << 20, cpu_share=0.5, ended=2))
    return one.model_copy(update={"workers": workers, "server": cost, "samples": samples})


def test_slopes_are_those_of_what_was_measured() -> None:
    series = curves.series([_at(10, 101.0), _at(100, 110.0), _at(1000, 200.0)])
    memory = next(curve for curve in series.curves if curve.name == "server_rss_mib")
    assert memory.per_1000 == pytest.approx(100.0)
    assert memory.at_0 == pytest.approx(100.0)
    flat = next(curve for curve in series.curves if curve.name == "server_cpu_share")
    assert flat.exponent == pytest.approx(0.0)
    assert not any(curve.name == "database_mib" for curve in series.curves)  # it was not measured


def test_a_load_and_a_series_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    say(simulate_views.load(_at(10, 101.0)))
    say(simulate_views.series(curves.series([_at(10, 101.0), _at(1000, 200.0)])))
    text = capsys.readouterr().out
    assert "2 completed, 0 lost, 0 completed twice" in text
    assert "server rss mib" in text


def _drawn(file: Path) -> tuple[list[list[tuple[float, float]]], list[str]]:
    """Read an SVG: of each of its axes the points of the line, and all labels, which matplotlib writes as comments."""
    root = ElementTree.fromstring(
        file.read_text(), parser=ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    )
    labels = [str(each.text).strip() for each in root.iter(ElementTree.Comment)]  # type: ignore[arg-type]
    lines = []
    for axes in (each for each in root.iter() if each.get("id", "").startswith("axes_")):
        # Ticks have lines too, deeper down.
        (path,) = (part for each in axes if each.get("id", "").startswith("line2d_") for part in each if part.get("d"))
        numbers = [float(word) for word in str(path.get("d")).replace("M", "").replace("L", "").split()]
        lines.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return lines, labels


def test_a_load_is_drawn_over_time(tmp_path: Path) -> None:
    required("matplotlib")
    curves.draw_load(_at(10, 101.0), tmp_path / "one.svg")
    lines, labels = _drawn(tmp_path / "one.svg")
    assert [len(points) for points in lines] == [2, 1, 2], "of the processor one sample has nothing"
    assert {"server memory, MiB", "server CPU, cores", "ended tasks", "seconds"} <= set(labels)
    assert "10 workers, 2 tasks" in labels
    (begin, low), (end, high) = lines[0]
    assert begin < end
    assert low > high, "memory grew, and an SVG counts from the top"


def test_a_series_is_drawn_over_its_loads(tmp_path: Path) -> None:
    required("matplotlib")
    series = curves.series([_at(10, 101.0), _at(100, 110.0), _at(1000, 200.0)])
    curves.draw_series(series, tmp_path / "more.svg")
    lines, labels = _drawn(tmp_path / "more.svg")
    assert [len(points) for points in lines] == [3] * len(series.curves)
    assert labels.count("workers") == len(series.curves)
    memory = next(curve for curve in series.curves if curve.name == "server_rss_mib")
    assert any(label.startswith("server rss mib") and f"{memory.exponent:.2f}" in label for label in labels)
    (first, _), (second, _), (third, _) = lines[0]
    assert second - first == pytest.approx(third - second, rel=0.01), "each ten times the one before, on a log axis"


@pytest.mark.parametrize(
    ("name", "words"), [("a.png", "not an SVG"), ("none/a.svg", "The folder of .* does not exist")]
)
def test_a_plot_that_could_not_be_written_is_refused_before_anything_is_measured(
    name: str, words: str, tmp_path: Path
) -> None:
    required("matplotlib")
    with pytest.raises(InputError, match=words):
        curves.check(tmp_path / name)
