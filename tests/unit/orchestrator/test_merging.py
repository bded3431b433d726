"""Equal tasks as one run: who goes along, whose result is whose, and what becomes of them when something goes wrong."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.unit.orchestrator.lab import FakeWorker, Lab
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.tasks import control, spec_columns, tasks
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.worker_link import ExecutorOffer, Finish, Offer

ABLE = (ExecutorOffer(kind="inference", merges=True),)


def document(*items: str, **spec: Any) -> str:
    body = {"taskType": "inference", "model": {"source": {"identifier": "tiny"}}, **spec}
    body["data"] = {"type": "list", "items": list(items) or ["a"]}
    return orjson.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "ask"}, "spec": body}).decode()


async def submit(lab: Lab, *items: str, actor: Actor | None = None, **spec: Any) -> str:
    made = await workflows.submit(lab.core, actor or lab.admin, SubmitRequest(document=document(*items, **spec)))
    return made.tasks[0].id


async def online(lab: Lab, id_: str = "w1", executors: tuple[ExecutorOffer, ...] = ABLE) -> FakeWorker:
    worker = lab.worker(id_, want={"job": 1})
    await worker.register(executors=executors, slots={"job": 1, "light": 0}, environments=("vllm",))
    await worker.exchange()
    return worker


async def started(worker: FakeWorker) -> Offer:
    """Take the one offer that there is, with all that go along."""
    (offer,) = await worker.offers()
    tokens = (offer.token, *(each.token for each in offer.merged))
    assert set((await worker.accept(*tokens)).accepted) == set(tokens)
    return offer


async def statuses(lab: Lab, *ids: str) -> list[str]:
    return [(await lab.task(id_)).status for id_ in ids]


async def test_equal_tasks_go_as_one_offer_and_each_gets_its_own_result(lab: Lab) -> None:
    worker = await online(lab)
    ids = [await submit(lab, text) for text in ("a", "b", "c")]
    offer = await started(worker)
    assert (offer.task_id, *(each.task_id for each in offer.merged)) == tuple(ids)
    assert [each.spec["data"]["items"] for each in offer.merged] == [["b"], ["c"]]
    assert (await lab.task(ids[1])).merged_into == ids[0]
    # One slot: those that go along take none.
    assert (await worker.exchange(want={"job": 0})).offers == ()
    for number, token in enumerate((offer.token, *(each.token for each in offer.merged))):
        await worker.finish(token, result={"items": [number]})
    assert await statuses(lab, *ids) == ["completed"] * 3
    results = [(await lab.task(id_)).result for id_ in ids]
    assert [result["result"] for result in results if result] == [{"items": [0]}, {"items": [1]}, {"items": [2]}]
    assert (await lab.task(ids[1])).merged_into == ids[0]


async def test_no_more_go_along_than_the_setting_allows(lab: Lab) -> None:
    worker = await online(lab)
    ids = [await submit(lab, str(number)) for number in range(6)]
    offer = await started(worker)
    assert [each.task_id for each in offer.merged] == ids[1:4]
    assert await statuses(lab, *ids[4:]) == ["queued", "queued"]


async def test_fault_33_tasks_of_two_owners_are_never_computed_together(lab: Lab) -> None:
    worker = await online(lab)
    alice, bob = await lab.actor("alice", "member"), await lab.actor("bob", "member")
    first = await submit(lab, "a", actor=alice)
    other = await submit(lab, "a", actor=bob)
    mine = await submit(lab, "a", actor=alice)
    offer = await started(worker)
    assert (offer.task_id, [each.task_id for each in offer.merged]) == (first, [mine])
    assert await statuses(lab, other) == ["queued"]


async def test_fault_33_a_worker_whose_executor_does_not_merge_gets_each_task_by_itself(lab: Lab) -> None:
    worker = await online(lab, executors=(ExecutorOffer(kind="inference"),))
    for _ in range(2):
        await submit(lab)
    (offer,) = await worker.offers()
    assert offer.merged == ()


async def test_of_two_workers_the_one_that_merges_takes_equal_tasks_and_the_other_one_of_them(lab: Lab) -> None:
    plain = await online(lab, "w1", executors=(ExecutorOffer(kind="inference"),))
    able = await online(lab, "w2")
    ids = {await submit(lab, str(number)) for number in range(5)}
    await scheduler.run_once(lab.core)
    (one,), (other,) = (await plain.exchange()).offers, (await able.exchange()).offers
    taken = {one.task_id, other.task_id, *(each.task_id for each in other.merged)}
    assert one.merged == ()
    assert taken == ids


@pytest.mark.parametrize(
    "change",
    [
        {"inference": {"max_tokens": 5}},
        {"model": {"source": {"identifier": "another"}}},
        {"resources": {"tags": ["gpu"]}},
    ],
    ids=["inference", "model", "resources"],
)
def test_only_data_and_system_prompt_may_differ(change: dict[str, Any]) -> None:
    spec = {"taskType": "inference", "model": {"source": {"identifier": "tiny"}}, "inference": {"max_tokens": 9}}
    key = spec_columns.merge_key("ann", "default", {**spec, "data": {"items": ["a"]}}, {})
    words = {"max_tokens": 9, "system_prompt": "Be kind."}
    assert key == spec_columns.merge_key("ann", "default", {**spec, "inference": words, "data": {"items": ["b"]}}, {})
    assert key != spec_columns.merge_key("ann", "default", {**spec, **change}, {})
    assert key != spec_columns.merge_key("bob", "default", spec, {})
    assert spec_columns.merge_key("ann", "default", {**spec, "taskType": "sft"}, {}) is None


ADAPTER = {"type": "lora", "url": "https://example.org/adapter.tar.gz"}
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "another": {"model": {"source": {"identifier": "another"}}},
    "another revision": {"model": {"source": {"identifier": "tiny", "revision": "v2"}}},
    "an adapter": {"model": {"source": {"identifier": "tiny"}, "adapters": [ADAPTER]}},
    "another name": {"model": {"source": {"identifier": "tiny"}, "adapters": [{**ADAPTER, "name": "mine"}]}},
    "an engine": {"model": {"source": {"identifier": "tiny"}, "vllm": {"dtype": "float16"}}},
    "weights of a task": {"checkpoint": {"load": {"type": "http", "url": "https://example.org/model.tar.gz"}}},
}


async def test_fault_34_a_question_to_one_model_is_never_computed_with_one_to_another(lab: Lab) -> None:
    worker = await online(lab)
    asked = {name: [await submit(lab, f"{name} {n}", **spec) for n in range(2)] for name, spec in MODELS.items()}
    runs = []
    for _ in MODELS:
        offer = await started(worker)
        runs.append([offer.task_id, *(each.task_id for each in offer.merged)])
        models = {
            orjson.dumps([s["model"], s.get("checkpoint")]) for s in (offer.spec, *(m.spec for m in offer.merged))
        }
        assert len(models) == 1
        for token in (offer.token, *(each.token for each in offer.merged)):
            await worker.finish(token, result={"items": []})
    assert sorted(runs) == sorted(asked.values()), "each with its like, and with nobody else"


def test_a_file_other_than_the_data_must_be_the_same_one() -> None:
    spec = {"taskType": "inference", "checkpoint": {"load": {"path": "./adapter"}}}
    keys = {
        spec_columns.merge_key("ann", "default", spec, {pointer: {"digest": digest, "name": "adapter"}})
        for pointer, digest in (("checkpoint.load.path", "1"), ("checkpoint.load.path", "2"), ("data.path", "3"))
    }
    assert len(keys) == 3
    assert spec_columns.merge_key("ann", "default", spec, {}) in keys


async def test_a_shared_run_that_fails_costs_nobody_a_try_and_each_is_judged_by_its_own(lab: Lab) -> None:
    worker = await online(lab)
    ids = [await submit(lab, text) for text in ("a", "b")]
    offer = await started(worker)
    ends = [
        Finish(token=t, outcome="released", reason="released", error="It broke.")
        for t in (offer.token, offer.merged[0].token)
    ]
    worker.holding.clear()
    await worker.exchange(finishes=tuple(ends))
    assert await statuses(lab, *ids) == ["queued", "queued"]
    alone = await started(worker)
    assert (alone.task_id, alone.merged, alone.attempt) == (ids[0], (), 2)
    attempt = (await lab.task(ids[0])).attempt_list[0]
    assert (attempt.reason, attempt.error) == ("released", "It broke.")


async def test_a_lost_worker_loses_all_of_them_and_each_is_tried_again(lab: Lab) -> None:
    worker = await online(lab)
    ids = [await submit(lab, text) for text in ("a", "b")]
    await started(worker)
    other = await online(lab, "w2")
    await lab.sweep(31, alive=(other,))
    assert (await workers_of(lab, ids)) == ["w1", "w1"]
    offer = await started(other)
    assert (offer.task_id, [each.task_id for each in offer.merged]) == (ids[0], [ids[1]])


async def workers_of(lab: Lab, ids: list[str]) -> list[str]:
    return [(await lab.task(id_)).attempt_list[0].worker_id for id_ in ids]


async def test_cancelling_one_of_them_leaves_the_others_and_drops_its_result(lab: Lab) -> None:
    worker = await online(lab)
    ids = [await submit(lab, text) for text in ("a", "b", "c")]
    offer = await started(worker)
    await tasks.cancel(lab.core, lab.admin, ids[1])
    (wish,) = (await worker.exchange()).desired
    assert (wish.token, wish.action) == (offer.merged[0].token, "cancel")
    for token in (offer.token, *(each.token for each in offer.merged)):
        await worker.finish(token, result={"items": []})
    assert await statuses(lab, *ids) == ["completed", "cancelled", "completed"]
    assert (await lab.task(ids[1])).result is None


async def test_what_went_along_with_an_offer_that_is_cancelled_is_placed_anew(lab: Lab) -> None:
    worker = await online(lab)
    ids = [await submit(lab, text) for text in ("a", "b")]
    assert len(await worker.offers()) == 1
    await tasks.cancel(lab.core, lab.admin, ids[0])
    assert await statuses(lab, *ids) == ["cancelled", "queued"]
    assert (await started(worker)).task_id == ids[1]


async def test_one_that_goes_along_is_not_paused_by_itself(lab: Lab) -> None:
    worker = await online(lab)
    head, child = [await submit(lab, text) for text in ("a", "b")]
    offer = await started(worker)
    assert offer.task_id == head
    with pytest.raises(ConflictError, match=f"is coalesced into {head}") as caught:
        await control.pause(lab.core, lab.admin, child)
    assert f"tunefleet cancel {child}" in (caught.value.hint or "")
    assert (await lab.task(child)).desired == "run"
    assert (await control.pause(lab.core, lab.admin, head)).desired == "pause"
