"""Placement through the store: devices, load, waiting, deadlines, stickiness, and why a task stands where it stands."""

from __future__ import annotations

from importlib import resources
from typing import Any

import orjson
import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, FakeWorker, Lab
from tunefleet.artifacts import manifest_digest
from tunefleet.db.repositories import queue
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.preflight import explain
from tunefleet.orchestrator.scheduling import queue as waiting
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.scheduling.scheduler import CycleTime
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import spec_columns, tasks
from tunefleet.orchestrator.workers import workers
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import ArtifactCreate, SubmitRequest
from tunefleet.schemas.worker_link import ExecutorOffer, Gpu, GpuLoad, Load

GIB = 1 << 30


def gpu(index: int, name: str = "NVIDIA A100", gib: int = 80) -> Gpu:
    return Gpu(index=index, name=name, uuid=f"GPU-{index}", memory_total_bytes=gib * GIB)


def asking(hardware: str, **more: Any) -> str:
    extra = "".join(f"  {key}: {value}\n" for key, value in more.items())
    return TRAIN + f"  resources: {{hardware: {hardware}}}\n" + extra


async def with_gpus(lab: Lab, *gpus: Gpu, slots: int = 4, id_: str = "w1", **more: Any) -> FakeWorker:
    worker = lab.worker(id_, want={"job": slots, "light": 8})
    await worker.register(gpus=gpus, slots={"job": slots, "light": 8}, **more)
    await worker.exchange()
    return worker


def load(memory_gib: int = 8, *gpus: GpuLoad, disk_gib: int = 8) -> Load:
    return Load(memory_free_bytes=memory_gib * GIB, disk_free_bytes=disk_gib * GIB, gpus=gpus)


async def test_offers_name_the_devices_and_a_mixed_worker_is_counted_right(lab: Lab) -> None:
    worker = await with_gpus(lab, gpu(0), gpu(1, "NVIDIA RTX 4090", 24))
    small = await lab.submit(asking("{gpu: {count: 1}}"))
    (offer,) = await worker.offers()
    assert (offer.task_id, offer.gpus) == (small, ("GPU-1",))
    await worker.accept(offer.token)
    large = await lab.submit(asking("{gpu: {count: 1, type: a100}}"))
    other = await lab.submit(asking("{gpu: {count: 1, type: '4090'}}"))
    (second,) = await worker.offers()
    assert (second.task_id, second.gpus) == (large, ("GPU-0",))
    assert "no free GPU" in str((await lab.task(other)).why)
    await worker.accept(second.token)
    await worker.finish(offer.token, result={})
    (third,) = await worker.offers()
    assert (third.task_id, third.gpus) == (other, ("GPU-1",))


async def test_a_training_that_says_nothing_of_gpus_takes_one_where_there_is_one(lab: Lab) -> None:
    """Otherwise the second one would wait on the worker for a device that the first one has."""
    worker = await with_gpus(lab, gpu(0))
    await lab.submit(TRAIN)
    second = await lab.submit(TRAIN)
    (offer,) = await worker.offers()
    assert offer.gpus == ("GPU-0",)
    assert "no free GPU" in str((await lab.task(second)).why)


@pytest.mark.parametrize(
    ("training", "gpus", "warned"),
    [
        ("{fp16: true}", (), True),
        ("{fp16: true, allow_multi_gpu: true}", (), True),
        ("{fp16: true}", (gpu(0),), False),
        ("{fp16: false}", (), False),
        ("{bf16: true}", (), False),
        ("{deepspeed: {fp16: {enabled: true}}}", (), True),
    ],
)
async def test_fp16_without_a_gpu_in_the_fleet_is_told_at_the_submit(
    lab: Lab, training: str, gpus: tuple[Gpu, ...], *, warned: bool
) -> None:
    await with_gpus(lab, *gpus)
    made = await workflows.submit(lab.core, lab.admin, SubmitRequest(document=TRAIN + f"  training: {training}\n"))
    why_not = "unschedulable: w1 has 0 GPUs, 1 are needed for training.fp16."
    assert made.warnings == ((f"Task {made.tasks[0].name} is {why_not}",) if warned else ())


async def test_fault_06_a_worker_that_is_alone_gets_the_second_try_too(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN + "  retry: {max_attempts: 3, backoff_s: 10}\n")
    for number in (1, 2):
        offer = await worker.start()
        assert (offer.task_id, offer.attempt) == (task_id, number)
        await worker.finish(offer.token, "failed", "crashed", error="It broke.")
        await lab.sweep(25, alive=(worker,))
    view = await explain.of_task(lab.core, lab.admin, task_id)
    assert view.attempts == ("Attempt 1 on w1 ended (crashed): It broke.", "Attempt 2 on w1 ended (crashed): It broke.")


async def test_fault_05_a_worker_that_is_away_for_a_moment_costs_a_task_nothing(lab: Lab) -> None:
    worker = await lab.online()
    await lab.sweep(lab.core.settings.lost_after_s - 2)
    task_id = await lab.submit(TRAIN + "  retry: {max_attempts: 1}\n")
    for _ in range(20):
        assert await scheduler.run_once(lab.core) == 0
    assert (await lab.task(task_id)).attempts == 0
    assert (await worker.start()).task_id == task_id


async def test_fault_09_a_worker_whose_slot_is_in_use_is_given_nothing(lab: Lab) -> None:
    """It says itself what it has room for: one that is still cleaning up has none."""
    worker = await lab.online(want={"job": 1, "light": 8})
    await lab.submit(TRAIN)
    offer = await worker.start()
    worker.want = {"job": 0, "light": 8}
    waiting = await lab.submit(TRAIN)
    await worker.finish(offer.token, result={})
    assert await worker.offers() == ()
    assert "is busy" in str((await lab.task(waiting)).why)
    worker.want = {"job": 1, "light": 8}
    assert [each.task_id for each in await worker.offers()] == [waiting]


async def test_fault_12_tasks_that_nobody_can_run_delay_nobody_and_say_so(lab: Lab) -> None:
    worker = await lab.online()
    stuck = [await lab.submit(asking(f"{{gpu: {{count: {n + 1}, type: h100}}}}")) for n in range(20)]
    free = await lab.submit(TRAIN)
    assert [each.task_id for each in await worker.offers()] == [free]
    assert str((await lab.task(stuck[0])).why).startswith("unschedulable: w1 has 0 GPUs, 1 are needed")


async def test_fault_31_a_task_goes_only_where_its_kind_can_run(lab: Lab) -> None:
    broken = lab.worker("broken")
    await broken.register(executors=(ExecutorOffer(kind="lora_sft", available=False, reason="trl is missing."),))
    await broken.exchange()
    task_id = await lab.submit(TRAIN)
    assert await scheduler.run_once(lab.core) == 0
    assert (await lab.task(task_id)).why == "unschedulable: broken cannot run lora_sft tasks: trl is missing."
    able = await lab.online("able")
    assert [each.task_id for each in await able.offers()] == [task_id]


async def test_fault_32_tags_deadlines_and_load_decide_the_order(lab: Lab) -> None:
    tagged = lab.worker("tagged", want={"job": 4, "light": 8})
    task_tagged = await lab.submit(TRAIN + "  resources: {tags: [lab]}\n")
    lab.clock.advance(1.0)
    late = await lab.submit(TRAIN)
    lab.clock.advance(60.0)
    due = await lab.submit(TRAIN + "  sloSeconds: 600\n")
    urgent = await lab.submit(TRAIN + "  sloSeconds: 60\n")
    light = await lab.submit(TRAIN + "  resources: {estimatedLoad: 1}\n")
    heavy = await lab.submit(TRAIN + "  resources: {estimatedLoad: 500}\n")
    await tagged.register(tags=("ssd", "lab"), slots={"job": 8, "light": 8})
    order = []
    for _ in range(6):
        tagged.want = {"job": 1}
        (offer,) = await tagged.offers()
        order.append(offer.task_id)
        await tagged.accept(offer.token)
    assert order == [urgent, due, task_tagged, late, heavy, light]


def test_a_deadline_counts_like_waiting_and_never_moves_a_task_back() -> None:
    assert spec_columns.rank(1000.0, 0, due_at=1000.0 + 2 * spec_columns.DUE_S) == 1000.0
    assert spec_columns.rank(1000.0, 0, due_at=1600.0) == 1600.0 - spec_columns.DUE_S
    assert spec_columns.rank(1000.0, 1) == 1000.0 - spec_columns.PRIORITY_S
    assert 999.99 < spec_columns.rank(1000.0, 0, load=10**9) < spec_columns.rank(1000.0, 0, load=3) < 1000.0


async def test_free_memory_and_disk_count_as_the_worker_told_them_last(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(asking("{memory: 6Gi, disk: 4Gi}"))
    await worker.exchange(load=load(2))
    assert await scheduler.run_once(lab.core) == 0
    assert (await lab.task(task_id)).why == "waiting: w1 has 2 GiB memory free, 6 GiB are needed."
    await worker.exchange(load=load(8, disk_gib=1))
    assert (await lab.task(task_id)).why == "waiting: w1 has 1 GiB disk free, 4 GiB are needed."
    seen = lab.core.signals.version("placement")
    await worker.exchange(load=load(8))
    assert lab.core.signals.version("placement") > seen, "somebody may be waiting for it"
    (view,) = (await workers.list_(lab.core, lab.admin)).items
    assert view.load == load(8)
    assert [each.task_id for each in await worker.offers()] == [task_id]


async def test_figures_from_before_a_task_ended_do_not_hold_up_the_next_one(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit(asking("{memory: 6Gi}"))
    offer = await worker.start()
    await worker.exchange(load=load(1))
    following = await lab.submit(asking("{memory: 6Gi}"))
    await worker.finish(offer.token, result={})
    assert [each.task_id for each in await worker.offers()] == [following]


async def test_what_jobs_have_asked_for_is_not_given_out_twice(lab: Lab) -> None:
    worker = await with_gpus(lab, slots=4)
    for _ in range(3):
        await lab.submit(asking("{memory: 3Gi, cpu: 1}"))
    assert len(await worker.offers()) == 2


async def test_a_gpu_that_somebody_else_fills_is_not_given_out(lab: Lab) -> None:
    worker = await with_gpus(lab, gpu(0))
    task_id = await lab.submit(asking("{gpu: {count: 1, memory: 40Gi}}"))
    await worker.exchange(load=load(8, GpuLoad(uuid="GPU-0", memory_free_bytes=10 * GIB)))
    assert await scheduler.run_once(lab.core) == 0
    assert "10,240 MiB free" in str((await lab.task(task_id)).why)
    await worker.exchange(load=load(8, GpuLoad(uuid="GPU-0", memory_free_bytes=79 * GIB, in_use_by="a game (pid 7)")))
    assert "in use by a game (pid 7)" in str((await lab.task(task_id)).why)
    await worker.exchange(load=load(8, GpuLoad(uuid="GPU-0", memory_free_bytes=79 * GIB)))
    assert [each.task_id for each in await worker.offers()] == [task_id]


async def test_secrets_go_where_they_are_known(lab: Lab) -> None:
    without = await lab.online("without")
    task_id = await lab.submit(ECHO.replace("[a, b]", '["key ${secret:HF_TOKEN}"]'))
    assert (await lab.task(task_id)).why == "unschedulable: without lacks the secret HF_TOKEN."
    known = lab.worker("known")
    await known.register(secrets=("HF_TOKEN", "OTHER"))
    await known.exchange()
    (offer,) = await known.offers()
    assert "${secret:HF_TOKEN}" in str(offer.spec), "the server knows no value"
    assert await without.offers() == ()


async def test_a_task_goes_where_its_environment_is_ready(lab: Lab) -> None:
    without = lab.worker("without")
    await without.register(environments=())
    await without.exchange()
    task_id = await lab.submit(TRAIN.replace("spec:\n", "spec:\n  trainer: llamafactory\n"))
    assert (await lab.task(task_id)).why == (
        "unschedulable: without lacks the environment llamafactory (create it there with `tunefleet env create`)."
    )
    await without.register(environments=("llamafactory",))
    await without.exchange()
    assert [offer.task_id for offer in await without.offers()] == [task_id]


async def test_a_gguf_file_is_made_where_its_converter_is(lab: Lab) -> None:
    def merges(**features: str | None) -> tuple[ExecutorOffer, ...]:
        return (ExecutorOffer(kind="merge", features=features),)

    wanted = """apiVersion: tunefleet/v1
metadata: {name: export}
spec:
  taskType: merge
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  merge: {gguf: {type: TYPE}}
"""
    without = lab.worker("without")
    await without.register(executors=merges(gguf="Nothing leads to it. Clone llama.cpp."))
    await without.exchange()
    direct, other = [await lab.submit(wanted.replace("TYPE", name)) for name in ("q8_0", "q4_k_m")]
    assert (await lab.task(direct)).why == "unschedulable: without lacks gguf: Nothing leads to it. Clone llama.cpp."
    await without.register(executors=merges(gguf=None))
    await without.exchange()
    assert (await lab.task(other)).why == "unschedulable: without lacks llama-quantize."
    assert [offer.task_id for offer in await without.offers()] == [direct]


async def test_a_trainer_of_another_package_is_asked_for_where_it_is_installed(lab: Lab) -> None:
    def trains(**features: None) -> tuple[ExecutorOffer, ...]:
        return (ExecutorOffer(kind="lora_sft", features={name.replace("_", ":"): None for name in features}),)

    without, owner = lab.worker("without"), lab.worker("owner")
    await without.register(executors=trains(trainer_other=None))
    await without.exchange()
    task_id = await lab.submit(TRAIN.replace("spec:\n", "spec:\n  trainer: mine\n"))
    assert (await lab.task(task_id)).why == "unschedulable: without lacks trainer:mine."
    ours = await lab.submit(TRAIN)
    assert [offer.task_id for offer in await without.offers()] == [ours], "our own is everywhere"
    await owner.register(executors=trains(trainer_mine=None))
    assert [offer.task_id for offer in await owner.offers()] == [task_id]


async def test_a_wide_task_is_gathered_for_and_says_so(lab: Lab) -> None:
    worker = await with_gpus(lab, gpu(0), gpu(1))
    await lab.submit(asking("{gpu: {count: 1}}"))
    running = await worker.start()
    wide = await lab.submit(asking("{gpu: {count: 2}}"))
    lab.clock.advance(1.0)
    narrow = await lab.submit(asking("{gpu: {count: 1}}"))
    assert await worker.offers() == ()
    assert str((await lab.task(wide)).why).startswith("waiting: w1 is reserved for it until enough resources are free")
    assert f"is reserved for {wide}" in str((await lab.task(narrow)).why)
    await worker.finish(running.token, result={})
    (offer,) = await worker.offers()
    assert (offer.task_id, set(offer.gpus)) == (wide, {"GPU-0", "GPU-1"})


async def test_what_a_worker_was_given_lately_draws_the_same_model_there(lab: Lab) -> None:
    first = await lab.online("w1")
    await lab.submit(TRAIN)
    offer = await first.start()
    await first.finish(offer.token, result={})
    fleet = [first, *[await lab.online(f"other{n}") for n in range(6)]]
    again = await lab.submit(TRAIN)
    assert [each.task_id for each in await first.offers()] == [again]
    await first.accept((await first.exchange()).offers[0].token)
    for worker in fleet[1:]:
        assert (await worker.exchange()).offers == ()


PIPELINE = """apiVersion: tunefleet/v1
metadata: {name: two}
spec:
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two]}
  stages:
    - {name: first, spec: {taskType: lora_sft}}
    - {name: second, spec: {taskType: lora_sft}}
"""


@pytest.mark.parametrize("sticky", [True, False])
async def test_fault_10_a_stage_waits_for_the_worker_with_the_files_a_while_and_fails_of_nothing(
    lab: Lab, sticky: bool
) -> None:
    lab.core.settings = lab.core.settings.model_copy(update={"stickiness": sticky, "context_reuse": False})
    holder = await lab.online("holder")
    made = await submitted(lab, PIPELINE)
    first = await holder.start()
    other = await lab.online("other")
    await lab.submit(TRAIN)
    lab.clock.advance(2.0)
    await scheduler.run_once(lab.core)
    busy = (await other.exchange()).offers[0]
    await other.accept(busy.token)
    holder.want = {"job": 0}  # it is asked for nothing more by its owner
    await holder.finish(first.token, result={})
    await other.finish(busy.token, result={})
    assert await offered(lab, other, holder) == ([] if sticky else [made[1]])
    if sticky:
        lab.clock.advance(waiting.STICKY_WAIT_S + 1.0)
        assert await offered(lab, other, holder) == [made[1]]
    assert (await lab.task(made[1])).attempts == 1


async def submitted(lab: Lab, document: str) -> list[str]:
    made = await workflows.submit(lab.core, lab.admin, SubmitRequest(document=document))
    return [each.id for each in made.tasks]


async def offered(lab: Lab, *fleet: FakeWorker) -> list[str]:
    for worker in fleet:
        await worker.exchange()
    await scheduler.run_once(lab.core)
    lab.clock.advance(2.0)
    return [offer.task_id for worker in fleet for offer in (await worker.exchange()).offers]


async def test_why_lists_workers_in_the_order_in_which_they_would_be_taken(lab: Lab) -> None:
    await with_gpus(lab, gpu(0), id_="small", slots=1)
    await with_gpus(lab, *(gpu(n) for n in range(4)), id_="big")
    await lab.online("bare")
    first = await lab.submit(asking("{gpu: {count: 1}}"))
    lab.clock.advance(1.0)
    second = await lab.submit(asking("{gpu: {count: 1}}"))
    view = await explain.of_task(lab.core, lab.admin, second)
    assert (view.status, view.ahead, view.attempts) == ("queued", 1, ())
    assert [(each.worker_id, each.verdict) for each in view.workers] == [
        ("big", "fits"), ("small", "fits"), ("bare", "never"),
    ]  # fmt: skip
    assert (view.workers[0].score or 0) > (view.workers[1].score or 0)
    assert view.workers[2].reason == "has 0 GPUs, 1 are needed"
    assert (await explain.of_task(lab.core, lab.admin, first)).ahead == 0


async def test_why_counts_all_that_go_before_whatever_they_need_but_not_who_goes_elsewhere(lab: Lab) -> None:
    await lab.online("bare")
    for document in (
        TRAIN,  # each of these could go to the worker of the last one, and comes before it
        TRAIN + "  resources: {hardware: {cpu: 2}}\n",
        TRAIN + "  resources: {hardware: {memory: 9999GiB}}\n",  # goes nowhere, so it is in nobody's way
        ECHO,  # takes no slot of that kind
        TRAIN + "  priority: -5\n",  # goes after it
    ):
        await lab.submit(document)
        lab.clock.advance(1.0)
    last = await lab.submit(TRAIN + "  resources: {hardware: {cpu: 1, memory: 1GiB}}\n")
    assert (await explain.of_task(lab.core, lab.admin, last)).ahead == 2
    nowhere = await lab.submit(TRAIN + "  resources: {hardware: {memory: 9999GiB}}\n")
    assert (await explain.of_task(lab.core, lab.admin, nowhere)).ahead == 1, "the one that needs the same"


async def test_why_counts_tasks_of_one_submit_in_their_order(lab: Lab) -> None:
    await lab.online("bare", want={"light": 0})
    nodes = "".join(f"    - {{name: n{at}, spec: {{data: {{type: list, items: [a]}}}}}}\n" for at in range(3))
    document = f"apiVersion: tunefleet/v1\nmetadata: {{name: g}}\nspec:\n  taskType: echo\n  graph:\n   nodes:\n{nodes}"
    flow = await workflows.submit(lab.core, lab.admin, SubmitRequest(document=document))
    assert [(await explain.of_task(lab.core, lab.admin, each.id)).ahead for each in flow.tasks] == [0, 1, 2]


async def test_a_dry_run_says_where_each_task_would_go_and_stores_nothing(lab: Lab) -> None:
    await lab.online("w1")
    reply = await explain.of_document(lab.core, lab.admin, SubmitRequest(document=PIPELINE))
    assert [(each.name, each.worker_id, each.after) for each in reply.forecasts] == [
        ("first", "w1", ()), ("second", "w1", ("first",)),
    ]  # fmt: skip
    stuck = await explain.of_document(lab.core, lab.admin, SubmitRequest(document=asking("{gpu: {count: 9}}")))
    assert stuck.forecasts[0].worker_id is None
    assert str(stuck.forecasts[0].why).startswith("unschedulable: w1 has 0 GPUs, 9 are needed")
    wrong = await explain.of_document(lab.core, lab.admin, SubmitRequest(document="spec: {taskType: nonsense}\n"))
    assert (wrong.ok, wrong.forecasts) == (False, ())
    assert wrong.faults
    assert (await tasks.list_(lab.core, lab.admin)).items == ()


async def test_groups_of_needs_beyond_what_is_remembered_are_placed_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "_known_needs", {})
    monkeypatch.setattr(cluster_state, "_MAX_KNOWN", 0)
    await lab.submit(asking("{memory: 1GiB}"))
    (known,) = await lab.core.read(queue.groups)
    assert await lab.core.read(lambda connection: cluster_state.needs(connection, [known]))
    await lab.submit(asking("{memory: 2GiB}"))
    keys = await lab.core.read(queue.groups)
    found = await lab.core.read(lambda connection: cluster_state.needs(connection, keys))
    assert sorted(need.memory_bytes for need in found.values()) == [GIB, 2 * GIB]


async def test_passes_that_take_long_are_made_more_seldom(lab: Lab) -> None:
    for spent_s, pause_s in ((0.005, 0.0), (0.1, 0.2), (9.0, 1.0)):
        lab.core.state(CycleTime).cpu_s = spent_s
        assert scheduler.pause_s(lab.core) == pause_s
    await lab.online()
    await lab.submit()
    assert await scheduler.run_once(lab.core) == 1
    assert 0 < lab.core.state(CycleTime).cpu_s < 9


def together(*tasks: str) -> SubmitRequest:
    """Tasks of one workflow, each as the inside of a YAML mapping."""
    nodes = "".join(f"    - {{{each}}}\n" for each in tasks)
    head = "apiVersion: tunefleet/v1\nmetadata: {name: t}\nspec:\n"
    return SubmitRequest(document=f"{head}  graph:\n   nodes:\n{nodes}")


def trained(name: str, more: str = "", after: str = "") -> str:
    spec = f"taskType: lora_sft, model: {{source: {{identifier: m}}}}, data: {{prompts: [one, two]}}{more}"
    return f"name: {name}, dependsOn: [{after}], spec: {{{spec}}}"


FEDERATED = ", federation: {workers: 3}"


@pytest.mark.parametrize(
    ("tasks", "workers", "starts", "why", "room"),
    [
        ([trained("a")], 1, {"a": 1}, {}, None),
        ([trained("a"), trained("b", after="a")], 1, {"a": 1, "b": 1}, {}, None),
        ([trained("a"), trained("b")], 1, {"a": 1, "b": 0}, {"b": "earlier tasks of the workflow file"}, (2, 1)),
        ([trained("a"), trained("b")], 2, {"a": 1, "b": 1}, {}, (2, 2)),
        (
            [trained("a", FEDERATED)],
            1,
            {"a": 0},
            {"a": "needs 2 workers at the same time; 1 is online, so it will"},
            (3, 0),
        ),
        ([trained("a", FEDERATED)], 2, {"a": 2}, {}, (3, 2)),
        ([trained("a", FEDERATED)], 3, {"a": 3}, {}, (3, 3)),
        ([trained("a", ", federation: {workers: 3, wait_s: 0}")], 1, {"a": 1}, {}, (3, 1)),
        (
            [trained("f", FEDERATED), trained("a"), trained("b", after="a")],
            1,
            {"f": 0, "a": 1, "b": 1},
            {"f": "needs 2 workers at the same time; 1 is online, so it will wait"},
            (4, 1),
        ),
        ([trained("a", ", resources: {nodes: 2}")], 1, {"a": 0}, {"a": "it needs 2 nodes at the same time"}, (2, 0)),
        (
            ["name: e, spec: {taskType: echo, data: {items: [a, b, c]}, parallel: {enabled: true, max_shards: 3}}"],
            1,
            {"e": 3},
            {},
            (3, 3),
        ),
    ],
)
async def test_a_dry_run_counts_what_runs_at_the_same_time(
    lab: Lab,
    tasks: list[str],
    workers: int,
    starts: dict[str, int],
    why: dict[str, str],
    room: tuple[int, int] | None,
) -> None:
    for number in range(workers):
        await lab.online(f"w{number}", want={"job": 1, "light": 4})
    reply = await explain.of_document(lab.core, lab.admin, together(*tasks))
    assert {each.name: len(each.worker_ids) for each in reply.forecasts} == starts, reply
    assert {each.name for each in reply.forecasts if each.why} == set(why)
    for each in reply.forecasts:
        assert why.get(each.name, "") in (each.why or "")
    found = reply.concurrency
    assert (None if found is None else (found.wanted, found.available)) == room


async def test_a_dry_run_says_so_when_enough_workers_are_online_but_busy(lab: Lab) -> None:
    one = await lab.online("w1")
    await lab.submit(TRAIN)
    await one.accept(*(offer.token for offer in await one.offers()))
    await lab.online("w2")
    reply = await explain.of_document(lab.core, lab.admin, together(trained("a", FEDERATED)))
    assert reply.forecasts[0].why == "waiting: it needs 2 workers at the same time; 1 is free now."
    assert reply.concurrency is not None
    assert reply.concurrency.summary == (
        "Up to 3 tasks and parts run at the same time; the online workers can run 2 of them, and the others wait."
    )


async def test_the_memory_of_an_uploaded_model_is_estimated_from_its_configuration(lab: Lab) -> None:
    await lab.online()
    shipped = resources.files("tunefleet").joinpath("workloads/assets/models/gsm8k-llama-2m/config.json").read_bytes()
    entry = (await lab.upload(lab.admin, shipped)).model_copy(update={"path": "config.json"})
    body = ArtifactCreate(name="mine", kind="model", files=(entry,), digest=manifest_digest([entry]))
    made = await artifacts.publish(lab.core, lab.admin, body)
    text = "taskType: lora_sft, model: {source: {identifier: ./mine}}, data: {prompts: [one, two]}"
    document = f"apiVersion: tunefleet/v1\nmetadata: {{name: t}}\nspec: {{{text}}}\n"
    request = SubmitRequest(document=document, inputs={"t": {"model.source.identifier": made.digest}})
    (forecast,) = (await explain.of_document(lab.core, lab.admin, request)).forecasts
    assert forecast.memory is not None
    assert forecast.memory.unknown is None
    assert forecast.memory.variants
    (unknown,) = (await explain.of_document(lab.core, lab.admin, SubmitRequest(document=document))).forecasts
    assert unknown.memory is not None
    assert unknown.memory.unknown is not None


async def test_an_uploaded_configuration_that_holds_anything_costs_the_estimate_alone(lab: Lab) -> None:
    await lab.online()
    shipped = resources.files("tunefleet").joinpath("workloads/assets/models/gsm8k-llama-2m/config.json").read_bytes()
    odd = orjson.dumps({**orjson.loads(shipped), "head_dim": "x"})
    entry = (await lab.upload(lab.admin, odd)).model_copy(update={"path": "config.json"})
    body = ArtifactCreate(name="odd", kind="model", files=(entry,), digest=manifest_digest([entry]))
    made = await artifacts.publish(lab.core, lab.admin, body)
    text = "taskType: lora_sft, model: {source: {identifier: ./odd}}, data: {prompts: [one, two]}"
    request = SubmitRequest(
        document=f"apiVersion: tunefleet/v1\nmetadata: {{name: t}}\nspec: {{{text}}}\n",
        inputs={"t": {"model.source.identifier": made.digest}},
    )
    (forecast,) = (await explain.of_document(lab.core, lab.admin, request)).forecasts
    assert forecast.memory is not None
    assert forecast.memory.unknown == "Unknown: its configuration has a value of the wrong type."


async def test_a_push_goes_where_the_hub_has_a_token(lab: Lab) -> None:
    def pushes(why: str | None) -> tuple[ExecutorOffer, ...]:
        return (ExecutorOffer(kind="push", features={"huggingface_hub": None, "hub": why}),)

    wanted = """apiVersion: tunefleet/v1
metadata: {name: publish}
spec:
  taskType: push
  checkpoint: {load: {path: /shared/model}}
  push: {to: "hf://org/name"OTHER}
"""
    worker = lab.worker("w1")
    await worker.register(executors=pushes("HF_TOKEN is not set: start the worker with one."))
    await worker.exchange()
    without = await lab.submit(wanted.replace("OTHER", ""))
    named = await lab.submit(wanted.replace("OTHER", ', hf_token: "${secret:HUB}"'))
    lacks = "unschedulable: w1 lacks hub: HF_TOKEN is not set: start the worker with one."
    assert (await lab.task(without)).why == lacks
    assert (await lab.task(named)).why == "unschedulable: w1 lacks the secret HUB."
    await worker.register(executors=pushes(None))
    await worker.exchange()
    assert [offer.task_id for offer in await worker.offers()] == [without]
