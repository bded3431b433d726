"""Which worker fits, which fits best, and what is said when none does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.placement import (
    Candidate,
    Device,
    Fit,
    Policy,
    Ranking,
    Reject,
    Requirement,
    WorkerState,
    devices,
    explain,
    match,
    plan,
)
from tunefleet.placement.match import accepts_tasks, fits, lacks, missing
from tunefleet.placement.policy import Selection

A100 = Device("NVIDIA A100-SXM4-80GB", 80 << 30)
RTX = Device("NVIDIA GeForce RTX 4090", 24 << 30)


def worker(id_: str = "w1", **changes: Any) -> WorkerState:
    given_: dict[str, Any] = {
        "present": True,
        "executors": {"echo": None, "lora_sft": None},
        "slots": {"light": 8, "job": 1},
        "free": {"light": 8, "job": 1},
        "cpu": 8,
        "memory_bytes": 32 << 30,
    }
    return WorkerState(id=id_, **{**given_, **changes})


def used(device: Device, who: str) -> Device:
    return replace(device, used_by=who)


def need(**changes: Any) -> Requirement:
    return Requirement(**{"kind": "lora_sft", "slot_class": "job", **changes})


@pytest.mark.parametrize(
    ("wanted", "has", "reason"),
    [
        (need(kind="dpo"), worker(), "cannot run dpo"),
        (need(), worker(executors={"lora_sft": "torch is not installed"}), "torch is not installed"),
        (need(), worker(slots={"light": 8, "job": 0}), "no slot"),
        (need(cpu=16), worker(), "has 8 cores, 16 are needed"),
        (need(memory_bytes=64 << 30), worker(), "has 32 GiB memory, 64 GiB are needed"),
        (need(tags=("fast",)), worker(tags=frozenset({"slow"})), "lacks the tag fast"),
        (need(), worker(tags=frozenset({"only:lab"})), "accepts only tasks with the tag only:lab"),
        (need(code=True), worker(), "--allow-code, TUNEFLEET_ALLOW_CODE=true"),
        (need(gpu_count=1), worker(), "has 0 GPUs"),
        (need(gpu_count=1, gpu_type="h100"), worker(gpus=(A100,)), "h100"),
        (need(gpu_count=1, gpu_memory_bytes=40 << 30), worker(gpus=(RTX,)), "with 40 GiB"),
        (need(secrets=("HF_TOKEN",)), worker(secrets=frozenset({"OTHER"})), "lacks the secret HF_TOKEN"),
        (
            need(secrets=("HF_TOKEN",), project="a"),
            worker(secrets=frozenset({"HF_TOKEN@b"})),
            "keeps the secret HF_TOKEN for other projects",
        ),
        (
            need(secrets=("HF_TOKEN",)),
            worker(secrets=frozenset({"HF_TOKEN@b"})),
            "keeps the secret HF_TOKEN for other projects",
        ),
        (need(environments=("vllm",)), worker(environments=frozenset({"ppo"})), "lacks the environment vllm"),
        (need(features=("gguf",)), worker(features={"lora_sft": {"gguf": "Install it."}}), "lacks gguf: Install it"),
        (need(features=("gguf",)), worker(features={"lora_sft": {"other": None}}), "lacks gguf"),
        (need(gpu_count=1, gpu_optional=True, gpu_type="h100"), worker(gpus=(RTX,)), "h100"),
    ],
)
def test_what_a_worker_lacks_for_good(wanted: Requirement, has: WorkerState, reason: str) -> None:
    verdict = match(wanted, has)
    assert isinstance(verdict, Reject)
    assert verdict.permanent
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("wanted", "has", "reasons"),
    [
        (
            need(cpu=16, memory_bytes=64 << 30, tags=("fast",), gpu_count=1),
            worker(),
            ("8 cores, 16", "32 GiB memory, 64 GiB", "lacks the tag fast", "has 0 GPUs, 1 are needed"),
        ),
        (
            need(kind="dpo", cpu=16, code=True, environments=("vllm",)),
            worker(slots={"light": 8, "job": 0}),
            ("cannot run dpo", "8 cores, 16", "lacks the environment vllm", "--allow-code"),
        ),
        (need(cpu=16), worker(slots={"light": 8, "job": 0}), ("no slot for job", "8 cores, 16")),
        (
            need(secrets=("A", "B"), project="a", features=("gguf", "awq")),
            worker(secrets=frozenset({"A@b"}), features={"lora_sft": {"gguf": "Install it."}}, project="c"),
            ("project c only", "keeps the secret A for", "lacks the secret B", "lacks gguf: Install it", "lacks awq"),
        ),
    ],
)
def test_everything_that_a_worker_lacks_is_said_at_once(
    wanted: Requirement, has: WorkerState, reasons: tuple[str, ...]
) -> None:
    verdict = match(wanted, has)
    assert isinstance(verdict, Reject)
    assert verdict.reason.count(", and ") == len(reasons) - 1
    assert [reason for reason in reasons if reason not in verdict.reason] == []


def test_a_worker_that_keeps_a_secret_for_a_project_takes_its_tasks() -> None:
    verdict = match(need(secrets=("HF_TOKEN",), project="b"), worker(secrets=frozenset({"HF_TOKEN@b"})))
    assert isinstance(verdict, Fit)


@pytest.mark.parametrize("has", [{"lora_sft": {"gguf": None}}, {"merge": {}}, {}])
def test_what_is_there_or_may_be_is_enough(has: dict[str, dict[str, str | None]]) -> None:
    assert isinstance(match(need(features=("gguf",)), worker(features=has)), Fit), "an older worker does not say"


@pytest.mark.parametrize(
    ("wanted", "has", "reason"),
    [
        (need(), worker(present=False), "does not respond"),
        (need(), worker(free={"light": 8, "job": 0}), "busy"),
        (need(), worker(cordoned=frozenset({"lora_sft"})), "did not accept"),
        (need(gpu_count=1), worker(gpus=(A100,), taken=frozenset({0})), "no free GPU"),
        (need(gpu_count=1), worker(gpus=(used(A100, "blender (pid 7)"),)), "one is in use by blender (pid 7)"),
        (need(gpu_count=2), worker(gpus=(A100, A100), taken=frozenset({1})), "1 of 2 GPUs free"),
        (need(gpu_count=1, gpu_memory_bytes=40 << 30), worker(gpus=(replace(A100, free_bytes=1 << 30),)), "1,024 MiB"),
        (need(gpu_count=1, gpu_all=True), worker(gpus=(A100, RTX), taken=frozenset({1})), "1 of 2 GPUs free"),
        (need(memory_bytes=20 << 30), worker(memory_taken=16 << 30), "has 16 GiB memory free, 20 GiB are needed"),
        (need(memory_bytes=20 << 30), worker(memory_free_bytes=4 << 30), "has 4 GiB memory free"),
        (need(disk_bytes=20 << 30), worker(disk_free_bytes=4 << 30), "has 4 GiB disk free"),
        (need(cpu=4), worker(cpu_taken=6), "has 2 of its 8 cores free, 4 are needed"),
        (need(), worker(closed="is cordoned"), "is cordoned"),
    ],
)
def test_what_passes_by_itself(wanted: Requirement, has: WorkerState, reason: str) -> None:
    verdict = match(wanted, has)
    assert isinstance(verdict, Reject)
    assert not verdict.permanent
    assert reason in verdict.reason


def test_a_task_may_ask_for_all_of_a_machine_although_the_system_and_the_driver_keep_a_little() -> None:
    whole = need(memory_bytes=32 << 30, gpu_count=1, gpu_memory_bytes=80 << 30)
    idle = worker(gpus=(replace(A100, free_bytes=79 << 30),), memory_free_bytes=29 << 30)
    assert isinstance(match(whole, idle), Fit)
    assert isinstance(match(whole, replace(idle, memory_free_bytes=9 << 30)), Reject)
    assert isinstance(match(whole, replace(idle, memory_taken=1)), Reject)


def test_type_and_memory_are_asked_of_the_same_device() -> None:
    mixed = worker(gpus=(Device("NVIDIA A100-PCIE-40GB", 40 << 30), Device("NVIDIA H200", 141 << 30)))
    assert isinstance(match(need(gpu_count=1, gpu_type="a100", gpu_memory_bytes=80 << 30), mixed), Reject)
    assert isinstance(match(need(gpu_count=1, gpu_type="a100"), mixed), Fit)
    assert isinstance(match(need(gpu_count=1, gpu_type="nvidia-A100"), mixed), Fit), "a hyphen for a space"
    assert isinstance(match(need(gpu_count=2, gpu_type="a100"), mixed), Reject)


def test_a_training_that_names_no_gpu_goes_where_there_is_one_and_a_light_task_where_there_is_room() -> None:
    workers = [worker("cpu"), worker("gpu", gpus=(RTX,))]
    unsaid = need(gpu_count=1, gpu_optional=True)
    assert plan([Candidate("t", unsaid, 1.0)], workers).assignments[0].worker_id == "gpu"
    workers = [worker("full", free={"light": 1}), worker("empty", free={"light": 8})]
    light = Requirement(kind="echo", slot_class="light")
    assert plan([Candidate("t", light, 1.0)], workers).assignments[0].worker_id == "empty"


def test_a_cached_model_is_preferred() -> None:
    workers = [worker("a"), worker("b", cached=frozenset({"org/model"}))]
    assert plan([Candidate("t", need(model="org/model"), 1.0)], workers).assignments[0].worker_id == "b"


def test_the_queue_is_kept_and_slots_are_counted_down() -> None:
    candidates = [Candidate(f"t{rank}", need(), float(rank)) for rank in (3, 1, 2)]
    decisions = plan(candidates, [worker("a"), worker("b")])
    assert [a.task_id for a in decisions.assignments] == ["t1", "t2"]
    assert decisions.waiting == ("t3",)


def test_a_task_that_fits_nowhere_does_not_hold_up_the_others() -> None:
    candidates = [Candidate("stuck", need(gpu_count=1), 1.0), Candidate("next", need(), 2.0)]
    assert [a.task_id for a in plan(candidates, [worker()]).assignments] == ["next"]


def test_a_worker_that_did_not_take_it_lately_is_avoided() -> None:
    avoiding = Candidate("t", need(), 1.0, frozenset({"w1"}))
    assert plan([avoiding], [worker("w1")]).assignments == ()
    assert plan([avoiding], [worker("w1"), worker("w2")]).assignments[0].worker_id == "w2"


def test_waiting_is_explained() -> None:
    assert explain(need(), []) == "unschedulable: no worker is registered."
    assert explain(need(), [worker()]) is None
    told = explain(need(cpu=99), [worker("a"), worker("b")])
    assert told is not None
    assert told.startswith("unschedulable: a has 8 cores")
    busy = explain(need(), [worker("a", free={"job": 0}), worker("b", executors={})])
    assert busy == "waiting: a is busy."
    many = explain(need(cpu=99), [worker(f"w{n}") for n in range(5)])
    assert many is not None
    assert many.endswith("; and 2 more.")
    assert explain(need(), [worker()], avoid=frozenset({"w1"})) == "waiting: w1 recently did not accept it."


def test_a_requirement_survives_its_text_and_equal_ones_share_a_key() -> None:
    wanted = need(gpu_count=1, gpu_type="a100", tags=("x", "y"), model="m")
    assert Requirement.load(wanted.dump()) == wanted
    assert Requirement.load(wanted.dump()[:-1] + ',"of_a_newer_version":1}') == wanted
    assert need().key == need().key != need(cpu=2).key


@given(
    ranks=st.lists(st.floats(0, 100), max_size=12),
    free=st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
def test_no_worker_gets_more_than_it_takes_and_no_slot_stays_empty(ranks: list[float], free: list[int]) -> None:
    workers = [worker(f"w{n}", slots={"job": 3}, free={"job": count}) for n, count in enumerate(free)]
    candidates = [Candidate(f"t{n}", need(), rank) for n, rank in enumerate(ranks)]
    decisions = plan(candidates, workers)
    given_ = [assignment.worker_id for assignment in decisions.assignments]
    assert all(given_.count(f"w{n}") <= count for n, count in enumerate(free))
    assert len(decisions.assignments) == min(len(ranks), sum(free))
    assert len({assignment.task_id for assignment in decisions.assignments}) == len(decisions.assignments)
    placed = {assignment.task_id for assignment in decisions.assignments}
    latest = max((c.rank for c in candidates if c.task_id in placed), default=0.0)
    assert all(c.rank >= latest for c in candidates if c.task_id not in placed)


@given(
    needs=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["", "a100", "4090"])), max_size=15),
    fleet=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5),
    selection=st.sampled_from(["best_fit", "first_fit", "min_satisfying"]),
)
def test_each_decision_is_the_best_at_its_turn(
    needs: list[tuple[int, str]], fleet: list[tuple[int, int, int]], selection: Selection
) -> None:
    """The plan's shortcut decides as a look at every worker would."""
    workers = [
        worker(f"w{n}", free={"job": free}, slots={"job": 3}, gpus=(A100,) * a100s + (RTX,) * rtxs)
        for n, (free, a100s, rtxs) in enumerate(fleet)
    ]
    # One GPU at most: for those that want several, a worker may be kept free.
    candidates = [
        Candidate(f"t{n}", need(gpu_count=min(count, 1), gpu_type=kind or None), float(n))
        for n, (count, kind) in enumerate(needs)
    ]
    policy = Policy(selection)
    wanted = {each.requirement for each in candidates}
    rankings = {each: Ranking(policy, each, [w for w in workers if isinstance(match(each, w), Fit)]) for each in wanted}
    state, expected = {w.id: w for w in workers}, []
    for candidate in candidates:
        wish = candidate.requirement
        fits = [(rankings[wish].key(w), w.id) for w in state.values() if isinstance(match(wish, w), Fit)]
        if fits:
            chosen = state[min(fits)[1]]
            expected.append((candidate.task_id, chosen.id))
            state[chosen.id] = replace(
                chosen,
                free={"job": chosen.free["job"] - 1},
                taken=chosen.taken | frozenset(devices.choose(wish, chosen) if wish.gpu_count else ()),
            )
    assert [(a.task_id, a.worker_id) for a in plan(candidates, workers, policy).assignments] == expected


DEVICES = st.builds(
    replace,
    st.sampled_from([A100, RTX]),
    free_bytes=st.sampled_from([None, 8 << 30, 24 << 30, 80 << 30]),
    used_by=st.sampled_from([None, None, "a game"]),
)
WORKERS = st.builds(
    worker,
    gpus=st.lists(DEVICES, max_size=4).map(tuple),
    taken=st.frozensets(st.integers(0, 3), max_size=3),
    free=st.fixed_dictionaries({"job": st.integers(0, 2), "light": st.just(8)}),
    slots=st.just({"job": 2, "light": 8}),
    cpu_taken=st.integers(0, 8),
    memory_taken=st.sampled_from([0, 8 << 30, 32 << 30]),
    memory_free_bytes=st.sampled_from([None, 4 << 30, 30 << 30]),
    disk_free_bytes=st.sampled_from([None, 1 << 30]),
    present=st.sampled_from([True, True, True, False]),
    pulls=st.sampled_from([False, False, False, True]),
    closed=st.sampled_from([None, None, None, "rests"]),
    cordoned=st.sampled_from([frozenset[str](), frozenset({"lora_sft"})]),
)
NEEDS = st.builds(
    need,
    cpu=st.sampled_from([0, 4]),
    memory_bytes=st.sampled_from([0, 16 << 30]),
    disk_bytes=st.sampled_from([0, 2 << 30]),
    gpu_count=st.integers(0, 2),
    gpu_optional=st.booleans(),
    gpu_all=st.booleans(),
    gpu_first=st.sampled_from([None, None, 1]),
    gpu_memory_bytes=st.sampled_from([0, 20 << 30]),
)


@given(wanted=NEEDS, has=WORKERS)
def test_the_quick_looks_at_a_worker_agree_with_the_one_that_finds_words(wanted: Requirement, has: WorkerState) -> None:
    if lacks(wanted, has) is not None:
        return
    fitting = isinstance(match(wanted, has), Fit)
    assert fits(wanted, has) == fitting
    assert fitting <= accepts_tasks(has)
    gap = missing(wanted, has)
    if fitting:
        assert gap == (0, 0, 0)
    if gap is not None:
        # What is missing is what our own tasks there have: without them it fits, but for what others use.
        freed = replace(
            has, free=has.slots, taken=frozenset(), cpu_taken=0, memory_taken=0, memory_free_bytes=None,
            gpus=tuple(replace(gpu, free_bytes=None) for gpu in has.gpus),
        )  # fmt: skip
        assert wanted.gpu_first is not None or fits(wanted, freed)


def test_a_task_goes_back_to_the_worker_with_its_folder_if_it_can_and_only_there_if_it_must() -> None:
    better, folder = worker("a", gpus=(A100,)), worker("z")

    def chosen(*workers: WorkerState, **more: Any) -> list[str]:
        candidate = Candidate("t", need(), 0.0, **{"prefers": "z", **more})
        return [assignment.worker_id for assignment in plan([candidate], workers).assignments]

    assert chosen(better, folder) == ["z"]
    busy = replace(folder, free={"job": 0})
    assert chosen(better, busy) == ["a"]
    assert chosen(better) == ["a"], "it is gone"
    assert chosen(better, folder, avoid=frozenset({"z"})) == ["a"]
    assert chosen(better, busy, only=True) == []
    assert chosen(better, folder, only=True) == ["z"]


def test_a_preferred_worker_is_not_given_out_twice() -> None:
    candidates = [Candidate(f"t{n}", need(), float(n), prefers="w1") for n in range(3)]
    found = plan(candidates, [worker("w1"), worker("w2")]).assignments
    assert [(each.task_id, each.worker_id) for each in found] == [("t0", "w1"), ("t1", "w2")]
