"""A task that cannot begin fails by itself: what was foreseen by nobody, too, and what would be too large."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.errors import StoreError
from tunefleet.orchestrator.tasks import fan_out, transitions
from tunefleet.spec.expressions.size_limits import MAX_RESOLVED_CHARACTERS


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


@pytest.mark.parametrize("place", ["before", "after"], ids=["before it is stored", "after it was stored"])
async def test_an_error_that_nobody_foresaw_fails_one_task_and_not_the_end_of_the_one_before_it(
    pipe: Pipelines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    where, name = (transitions, "resolve") if place == "before" else (fan_out, "count")
    real = getattr(where, name)

    def poisoned(*args: Any) -> Any:
        if "poison" in str(args):
            raise ValueError("Exceeds the limit (4300 digits)")
        return real(*args)

    monkeypatch.setattr(where, name, poisoned)
    bad = {"data": {"type": "list", "items": ["poison ${first.task_id}"]}}
    flow = await pipe.submit(
        stage("first"), stage("bad", "first", spec=bad), stage("good", "first"), stage("last", "bad")
    )
    (offer,) = await pipe.take()
    with caplog.at_level(logging.ERROR, logger="tunefleet.orchestrator.tasks.transitions"):
        await pipe.end(offer, {"items": ["found"]})
    assert await pipe.states(flow) == {"first": "completed", "bad": "failed", "good": "queued", "last": "failed"}
    task = await pipe.task(flow, "bad")
    assert (task.reason, task.resolved) == ("bad_input", None), "what was stored of it is undone"
    assert "failed to resolve the spec from the results of upstream tasks (ValueError)" in str(task.error)
    (record,) = [each for each in caplog.records if each.name == "tunefleet.orchestrator.tasks.transitions"]
    assert task.id in record.getMessage()
    assert record.exc_info is not None
    await pipe.run()
    assert pipe.ran == ["first", "good"], "nothing is computed twice"


async def test_trouble_of_the_store_is_no_fault_of_the_task(pipe: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = await pipe.submit(stage("first"), stage("second", "first"))
    (offer,) = await pipe.take()

    def full(*_args: Any) -> int:
        raise StoreError("The disk of the data folder is full.")

    with monkeypatch.context() as patch:
        patch.setattr(fan_out, "count", full)
        with pytest.raises(StoreError, match="full"):
            await pipe.end(offer, {"items": ["found"]})
    assert await pipe.states(flow) == {"first": "running", "second": "pending"}
    await pipe.end(offer, {"items": ["found"]})
    assert await pipe.states(flow) == {"first": "completed", "second": "queued"}


async def test_a_result_that_is_named_too_often_fails_the_task_that_names_it(pipe: Pipelines) -> None:
    data = {"type": "list", "items": ["${first.result.text}"] * 300}
    flow = await pipe.submit(stage("first"), stage("second", "first", spec={"data": data}), stage("third", "first"))
    (offer,) = await pipe.take()
    await pipe.end(offer, {"text": "x" * 500_000})
    assert await pipe.states(flow) == {"first": "completed", "second": "failed", "third": "queued"}
    task = await pipe.task(flow, "second")
    assert task.reason == "bad_input"
    assert "${first.result.text} is too large" in str(task.error)
    assert f"{MAX_RESOLVED_CHARACTERS:,} characters" in str(task.error)
    assert "Refer to a part of the result" in str(task.error)
