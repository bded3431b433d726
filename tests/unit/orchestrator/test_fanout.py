"""Tasks that are spread across workers: how many parts, one result of theirs, and what an end of one means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.errors import ConflictError
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.orchestrator.tasks import control, fan_out, tasks
from tunefleet.orchestrator.workflows import reruns, workflows
from tunefleet.schemas.worker_link import Offer

LETTERS = list("abcdefgh")


def spread(count: int | None = None, **more: Any) -> dict[str, Any]:
    parallel = {"enabled": True} | ({} if count is None else {"max_shards": count})
    return {"data": {"type": "list", "items": LETTERS}, "parallel": parallel, **more}


@pytest.fixture
async def pipe(lab: Lab) -> Pipelines:
    return Pipelines(lab, await lab.online())


async def finish(pipe: Pipelines, offers: list[Offer]) -> None:
    for offer in offers:
        await pipe.end(offer, EchoExecutor().run(offer))


async def test_the_results_of_the_parts_become_one_in_order(pipe: Pipelines) -> None:
    after = {"data": {"type": "list", "items": ["${all.result.items.7.output}"]}}
    flow = await pipe.submit(stage("all", spec=spread(3)), stage("after", "all", spec=after))
    assert await pipe.states(flow) == {
        "all": "running", "after": "pending", "all#0": "queued", "all#1": "queued", "all#2": "queued",
    }  # fmt: skip
    whole = await pipe.task(flow, "all")
    assert whole.why == "3 shards: 3 queued."
    part = await pipe.task(flow, "all#1")
    assert (part.shard_of, part.shard) == (whole.id, (1, 3))
    offers = await pipe.take()
    assert [offer.spec["shard"] for offer in offers] == [
        {"index": number, "total": 3, "contiguous": True} for number in range(3)
    ]
    assert all("parallel" not in offer.spec for offer in offers)
    await finish(pipe, offers[::-1])
    whole = await pipe.task(flow, "all")
    assert whole.status == "completed"
    found = await pipe.found(flow, "all")
    assert found["items"] == [{"index": at, "output": letter} for at, letter in enumerate(LETTERS)]
    assert (found["count"], found["ok"]) == (8, True)
    assert found["shards"] == [offer.task_id for offer in offers]
    await pipe.run()
    assert pipe.specs["after"]["data"]["items"] == ["h"]
    assert (await pipe.see(flow)).status == "completed"


async def test_without_a_number_there_are_as_many_parts_as_workers_that_can_run_it(pipe: Pipelines) -> None:
    flow = await pipe.submit(stage("alone", spec=spread()))
    assert await pipe.states(flow) == {"alone": "queued"}, "one worker gains nothing from parts"
    await pipe.lab.online("w2")
    other = pipe.lab.worker("w3")
    await other.register(slots={"job": 1}, executors=())
    flow = await pipe.submit(stage("two", spec=spread()))
    assert set(await pipe.states(flow)) == {"two", "two#0", "two#1"}
    for number in range(4, 15):
        await pipe.lab.online(f"w{number}")
    many = {"parallel": {"enabled": True}, "data": {"type": "list", "items": LETTERS * 5}}
    flow = await pipe.submit(stage("many", spec=many))
    assert len(await pipe.states(flow)) == 1 + 8
    few = {"parallel": {"enabled": True, "max_shards": 9}, "data": {"type": "list", "items": ["a", "b"]}}
    assert len(await pipe.states(await pipe.submit(stage("few", spec=few)))) == 1 + 2, "no part is empty"


async def test_a_part_that_fails_is_tried_again_and_then_fails_the_whole(pipe: Pipelines) -> None:
    again = {"max_attempts": 2, "backoff_s": 0}
    flow = await pipe.submit(stage("all", spec=spread(3, retry=again)), stage("after", "all"))
    first, second, third = await pipe.take()
    await pipe.end(second, "network")
    assert (await pipe.states(flow))["all#1"] == "queued"
    assert (await pipe.states(flow))["all"] == "running"
    pipe.worker.want = {"light": 1}
    (second,) = await pipe.take()
    await finish(pipe, [first])
    await pipe.end(second, "network")
    assert await pipe.states(flow) == {
        "all": "failed", "after": "failed", "all#0": "completed", "all#1": "failed", "all#2": "running",
    }  # fmt: skip
    whole = await pipe.task(flow, "all")
    assert whole.error == f"Its shard all#1 ({second.task_id}) failed: all#1 broke."
    assert whole.reason == "network"
    (wish,) = (await pipe.worker.exchange()).desired
    assert (wish.token, wish.action) == (third.token, "cancel")
    await pipe.worker.finish(third.token, "cancelled", "aborted")
    assert (await pipe.see(flow)).status == "failed"
    part = await pipe.task(flow, "all#2")
    error = f"Its sibling all#1 ({second.task_id}) failed: all#1 broke."
    assert (part.status, part.reason, part.error) == ("cancelled", "sibling_failed", error)
    assert [attempt.reason for attempt in part.attempt_list] == ["sibling_failed"]


@pytest.mark.parametrize("end", ["its worker is lost", "it has completed meanwhile", "nobody had begun it"])
async def test_a_part_that_another_one_stops_says_so_however_it_ends(pipe: Pipelines, end: str) -> None:
    flow = await pipe.submit(stage("all", spec=spread(2)))
    pipe.worker.want = {"light": 1}
    (first,) = await pipe.take()
    begun = end != "nobody had begun it"
    if begun:
        other = await pipe.lab.online("w2")
        second = await other.start()
    await pipe.end(first, "bad_input")
    if end == "its worker is lost":
        await pipe.lab.sweep(pipe.lab.core.settings.lost_after_s + 2, alive=(pipe.worker,))
    elif begun:
        await other.finish(second.token, result={"ok": True})
    part = await pipe.task(flow, "all#1")
    error = f"Its sibling all#0 ({first.task_id}) failed: all#0 broke."
    assert (part.status, part.reason, part.error) == ("cancelled", "sibling_failed", error)


async def test_a_part_that_goes_with_a_cancelled_one_is_told_which(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    flow = await pipe.submit(stage("all", spec=spread(3)))
    one = await pipe.task(flow, "all#1")
    await tasks.cancel(core, admin, one.id)
    assert (await pipe.task(flow, "all#1")).reason == "cancelled_by_user"
    for name in ("all#0", "all#2"):
        part = await pipe.task(flow, name)
        assert (part.reason, part.error) == ("upstream_cancelled", f"Its sibling all#1 ({one.id}) was cancelled.")
    flow = await pipe.submit(stage("all", spec=spread(2)))
    await tasks.cancel(core, admin, flow.tasks[0].id)
    part = await pipe.task(flow, "all#0")
    assert part.reason == "cancelled_by_user"
    assert part.error == f"Its parent task all ({flow.tasks[0].id}) was cancelled."


async def test_cancelling_the_whole_cancels_its_parts_and_a_cancelled_part_the_whole(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    pipe.worker.want = {"light": 1}
    flow = await pipe.submit(stage("all", spec=spread(3)), stage("after", "all"))
    (offer,) = await pipe.take()
    await tasks.cancel(core, admin, flow.tasks[0].id)
    assert await pipe.states(flow) == {
        "all": "cancelled", "after": "cancelled", "all#0": "running", "all#1": "cancelled", "all#2": "cancelled",
    }  # fmt: skip
    await pipe.worker.finish(offer.token, "cancelled", "aborted")
    assert (await pipe.see(flow)).status == "cancelled"
    flow = await pipe.submit(stage("all", spec=spread(2)))
    await tasks.cancel(core, admin, (await pipe.task(flow, "all#1")).id)
    assert set((await pipe.states(flow)).values()) == {"cancelled"}
    flow = await pipe.submit(stage("all", spec=spread(2)))
    await workflows.cancel(core, admin, flow.id)
    assert set((await pipe.states(flow)).values()) == {"cancelled"}


async def test_a_whole_takes_no_commands_and_a_part_goes_with_its_whole(pipe: Pipelines) -> None:
    core, admin = pipe.lab.core, pipe.lab.admin
    flow = await pipe.submit(stage("all", spec=spread(2)))
    whole, part = flow.tasks[0].id, (await pipe.task(flow, "all#0")).id
    with pytest.raises(ConflictError, match="is sharded across several workers"):
        await control.pause(core, admin, whole)
    await finish(pipe, await pipe.take())
    for verb in (reruns.retry, tasks.remove):
        with pytest.raises(ConflictError, match=f"is shard 1 of 2 of {whole}"):
            await verb(core, admin, part)
    again = await reruns.retry(core, admin, whole)
    assert [task.name for task in (await pipe.see(again)).tasks] == ["all", "all#0", "all#1"]
    await finish(pipe, await pipe.take())
    await tasks.remove(core, admin, again.tasks[0].id)
    assert [each.id for each in (await workflows.list_(core, admin)).items] == [flow.id]


async def test_a_stage_is_spread_once_its_items_are_known(pipe: Pipelines) -> None:
    later = {"data": {"type": "list", "items": "${first.result.items}"}, "resources": {"replicas": 4}}
    flow = await pipe.submit(stage("first"), stage("all", "first", spec=later))
    await pipe.run({"first": {"items": ["x", "y", "z"]}})
    assert await pipe.states(flow) == {
        "first": "completed", "all": "completed", "all#0": "completed", "all#1": "completed", "all#2": "completed",
    }  # fmt: skip


def test_what_parts_found_is_put_together() -> None:
    first = {
        "items": [{"index": 0, "output": "a"}, {"index": 1, "output": "b"}],
        "usage": {"prompt_tokens": 3, "latency_s": 0.5, "by": {"cached": 1}, "unit": "tokens"},
        "model": {"name": "m"},
        "took": 1,
        "jsonl_export": {"path": "/a", "count": 2, "fields": ["prompt"]},
    }
    second = {
        "items": [{"index": 0, "output": "c"}],
        "usage": {"prompt_tokens": 4, "latency_s": 0.25, "by": {"cached": 2}, "unit": "tokens"},
        "model": {"name": "m"},
        "took": 2,
        "jsonl_export": {"path": "/b", "count": 1, "fields": ["prompt"]},
    }
    assert fan_out.merge_results([first, second]) == {
        "items": [{"index": 0, "output": "a"}, {"index": 1, "output": "b"}, {"index": 2, "output": "c"}],
        "usage": {"prompt_tokens": 7, "latency_s": 0.75, "by": {"cached": 3}, "unit": "tokens"},
        "model": {"name": "m"},
        "jsonl_export": {
            "fields": ["prompt"],
            "count": 3,
            "parts": [first["jsonl_export"], second["jsonl_export"]],
        },
    }
    assert fan_out.merge_results([]) == {}
