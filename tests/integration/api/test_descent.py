"""The spans of tasks that are repeated or divided arrive at a collector, in one trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.collector import Collector, Span, collecting
from tests.unit.orchestrator import test_fanout, test_merging
from tests.unit.orchestrator.conftest import fresh_data, lab
from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tests.unit.orchestrator.test_descent import CALLER
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.observability import context
from tunefleet.observability.spans import open_spans
from tunefleet.orchestrator.observability.commit_metrics import Commits
from tunefleet.orchestrator.observability.task_spans import TaskSpans
from tunefleet.orchestrator.workflows import reruns, workflows
from tunefleet.schemas.api import RetryRequest

__all__ = ["fresh_data", "lab"]


@pytest.fixture
def traced(lab: Lab) -> Iterator[Collector]:
    """The lab's server sends its spans; what was told is there once `Collector.sent` was called."""
    with collecting() as collector:
        spans = open_spans(collector.url, "tunefleet-server", "0")
        commits: Any = lab.core.db._writer._before_commit
        assert isinstance(commits, Commits)
        assert spans is not None
        commits._spans = TaskSpans(spans, lambda: lab.clock.wall)
        collector.sent = lambda: spans._processor.force_flush()  # type: ignore[attr-defined]
        yield collector
        spans.close()


def told(collector: Collector, task_id: str, name: str) -> Span:
    collector.sent()  # type: ignore[attr-defined]
    (found,) = [span for span in collector.spans() if (span.name, span.about.get("tunefleet.task")) == (name, task_id)]
    return found


async def test_the_parts_of_a_task_are_in_its_trace_below_it(lab: Lab, traced: Collector) -> None:
    pipe = Pipelines(lab, await lab.online())
    flow = await pipe.submit(stage("all", spec=test_fanout.spread(2)))
    whole = await pipe.task(flow, "all")
    offers = await pipe.take()
    for offer in offers:
        await pipe.end(offer, EchoExecutor().run(offer))
    assert (await pipe.task(flow, "all")).status == "completed"
    head = told(traced, whole.id, "task")
    for offer in offers:
        part = told(traced, offer.task_id, "task")
        assert (part.trace_id, part.parent_id) == (head.trace_id, head.span_id)
        assert context.read_traceparent(offer.traceparent).trace_id == head.trace_id  # type: ignore[union-attr]


async def test_a_task_that_is_repeated_stays_in_its_trace(lab: Lab, traced: Collector) -> None:
    worker = await lab.online()
    first = await lab.submit()
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "bad_input", error="It broke.")
    row = await lab.task(first)
    again = await workflows.retry(lab.core, lab.admin, row.workflow_id, RetryRequest())
    (second,) = [task.id for task in again.tasks]
    offer = await worker.start()
    await worker.finish(offer.token)
    older, newer = told(traced, first, "task"), told(traced, second, "task")
    assert (newer.trace_id, newer.parent_id) == (older.trace_id, older.span_id)
    assert older.failed
    assert newer.links == ()


async def test_a_repeated_task_in_a_callers_own_trace_is_linked_to_the_older_one(lab: Lab, traced: Collector) -> None:
    worker = await lab.online()
    first = await lab.submit()
    await worker.finish((await worker.start()).token)
    assert CALLER is not None
    with context.parent_span(CALLER):
        second = (await reruns.clone(lab.core, lab.admin, first, {})).tasks[0].id
    await worker.finish((await worker.start()).token)
    older, newer = told(traced, first, "task"), told(traced, second, "task")
    assert (newer.trace_id, newer.parent_id) == (CALLER.trace_id, CALLER.span_id)
    assert newer.links == ((older.trace_id, older.span_id),)


async def test_an_attempt_that_goes_along_is_linked_to_the_one_that_runs(lab: Lab, traced: Collector) -> None:
    worker = await test_merging.online(lab)
    ids = [await test_merging.submit(lab, text) for text in ("a", "b")]
    offer = await test_merging.started(worker)
    for token in (offer.token, offer.merged[0].token):
        await worker.finish(token, result={"items": []})
    head = told(traced, ids[0], "task")
    (running,) = [span for span in traced.spans(head.trace_id) if span.name == "attempt"]
    along = told(traced, ids[1], "task")
    (other,) = [span for span in traced.spans(along.trace_id) if span.name == "attempt"]
    assert along.trace_id != head.trace_id
    assert other.links == ((running.trace_id, running.span_id),)
    assert running.links == ()
