"""Conditions: whether a task runs, and what becomes of those after it if it does not."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.errors import SpecError
from tunefleet.orchestrator.telemetry import live_feed


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


@pytest.mark.parametrize(("found", "state"), [("run-me", "completed"), ("leave-me", "skipped")])
async def test_a_condition_decides_whether_a_task_runs(pipe: Pipelines, found: str, state: str) -> None:
    when = {"node": "ask", "field": "items.0.output", "equals": "run-me"}
    flow = await pipe.submit(
        stage("ask"), stage("maybe", "ask", when=when), stage("after", "maybe"), stage("always", "ask")
    )
    await pipe.run({"ask": {"items": [{"output": found}]}})
    assert await pipe.states(flow) == {"ask": "completed", "maybe": state, "after": state, "always": "completed"}
    assert (await pipe.see(flow)).status == "completed"
    if state == "skipped":
        maybe, after = await pipe.task(flow, "maybe"), await pipe.task(flow, "after")
        assert (maybe.reason, after.reason) == ("condition_unmet", "upstream_skipped")
        why = 'Its condition is not met: ask.items.0.output is "leave-me", not "run-me".'
        assert (maybe.error, after.error) == (why, f"maybe ({maybe.id}) was skipped: {why}")
        told = await live_feed.events_after(pipe.lab.core, pipe.lab.admin, 0, task_id=maybe.id)
        assert told[-1].data["message"] == why


RUN = {"node": "ask", "field": "items.0.output", "equals": "run-me"}


@pytest.mark.parametrize(
    ("version", "on_skipped", "after"),
    [
        ("tunefleet/v1", None, "skipped"),
        ("tunefleet/v1", "skip", "skipped"),
        ("tunefleet/v1", "run", "completed"),
        ("mloc/v1", None, "skipped"),
        ("flowmesh/v1", None, "completed"),
        ("flowmesh/v1", "skip", "skipped"),
    ],
)
async def test_a_condition_says_what_becomes_of_those_after_a_skipped_task(
    pipe: Pipelines, version: str, on_skipped: str | None, after: str
) -> None:
    when = RUN | ({} if on_skipped is None else {"on_skipped": on_skipped})
    flow = await pipe.submit(
        stage("ask"), stage("maybe", "ask", when=when), stage("after", "maybe"), stage("last", "after"), version=version
    )
    await pipe.run({"ask": {"items": [{"output": "leave-me"}]}})
    states = {"ask": "completed", "maybe": "skipped", "after": after, "last": after}
    assert await pipe.states(flow) == states
    assert (await pipe.see(flow)).status == "completed"


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"data": {"type": "list", "items": ["${maybe.items}"]}},
         "spec.data.items.0: ${maybe.items} has no value: maybe was skipped."),
        ({"taskType": "python", "data": None, "code": "def main(inputs): return 1", "inputs": ["maybe"]},
         "spec.inputs names maybe, which was skipped."),
    ],
)  # fmt: skip
async def test_what_needs_the_result_of_a_skipped_task_fails_and_says_so(
    pipe: Pipelines, spec: dict[str, object], error: str
) -> None:
    flow = await pipe.submit(
        stage("ask"), stage("maybe", "ask", when=RUN | {"on_skipped": "run"}), stage("after", "maybe", spec=spec)
    )
    await pipe.run({"ask": {"items": [{"output": "leave-me"}]}})
    after = await pipe.task(flow, "after")
    assert (after.status, after.reason) == ("failed", "bad_input")
    assert (after.error or "").startswith(error)


@pytest.mark.parametrize(("on_skipped", "taken"), [("run", True), ("skip", False)])
async def test_a_skipped_task_of_an_earlier_workflow_may_be_depended_on_as_one_of_the_same(
    pipe: Pipelines, on_skipped: str, *, taken: bool
) -> None:
    flow = await pipe.submit(stage("ask"), stage("maybe", "ask", when=RUN | {"on_skipped": on_skipped}))
    await pipe.run({"ask": {"items": [{"output": "leave-me"}]}})
    maybe = (await pipe.task(flow, "maybe")).id
    if not taken:
        with pytest.raises(SpecError, match="which is already skipped"):
            await pipe.submit(stage("later", external=[maybe]))
        return
    later = await pipe.submit(stage("later", external=[maybe]))
    await pipe.run()
    assert await pipe.states(later) == {"later": "completed"}


async def test_a_condition_on_a_skipped_task_is_not_met(pipe: Pipelines) -> None:
    nodes = [stage("ask"), stage("maybe", "ask", when=RUN | {"on_skipped": "run"})]
    nodes.append(stage("then", "maybe", when={"node": "maybe", "field": "items", "equals": 1}))
    flow = await pipe.submit(*nodes)
    await pipe.run({"ask": {"items": [{"output": "leave-me"}]}})
    then = await pipe.task(flow, "then")
    assert (then.status, then.error) == ("skipped", "Its condition is not met: maybe was skipped.")


async def test_a_condition_on_a_field_that_is_not_there_fails_its_task_and_names_the_field(pipe: Pipelines) -> None:
    when = {"node": "ask", "field": "items.0.ouput", "equals": "run-me"}
    flow = await pipe.submit(stage("ask"), stage("maybe", "ask", when=when), stage("after", "maybe"))
    await pipe.run({"ask": {"items": [{"output": "run-me"}]}})
    assert await pipe.states(flow) == {"ask": "completed", "maybe": "failed", "after": "failed"}
    maybe = await pipe.task(flow, "maybe")
    assert maybe.reason == "bad_input"
    assert maybe.error == (
        "Its condition cannot be evaluated: ask.items.0.ouput has no value: result.items.0 of ask has no 'ouput'. "
        "Did you mean output?"
    )
