"""Which of several workers that fit is taken, under each policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.placement.test_placement import A100, RTX, need, worker
from tunefleet.placement import Candidate, Device, Policy, Requirement, WorkerState, plan
from tunefleet.placement.match import able, lacks
from tunefleet.placement.policy import Ranking, Selection

SMALL = Device("NVIDIA A10", 24 << 30)


def chosen(wanted: Requirement, workers: list[WorkerState], **policy: Any) -> str:
    found = plan([Candidate("t", wanted, 0.0)], workers, Policy(**policy))
    return found.assignments[0].worker_id


@pytest.mark.parametrize(
    ("selection", "expected"), [("best_fit", "big"), ("first_fit", "big"), ("min_satisfying", "small")]
)
def test_policies_differ(selection: Selection, expected: str) -> None:
    workers = [worker("small", gpus=(RTX,)), worker("big", gpus=(A100, A100)), worker("none")]
    assert chosen(need(gpu_count=1), workers, selection=selection) == expected


def test_fault_25_the_memory_of_gpus_counts() -> None:
    workers = [worker("a", gpus=(SMALL,)), worker("b", gpus=(A100,))]
    wanted = need(gpu_count=1)
    ranking = Ranking(Policy(jitter=0.0), wanted, workers)
    assert ranking.score(workers[1]) > ranking.score(workers[0])
    assert chosen(wanted, workers) == "b"
    assert chosen(wanted, workers, selection="first_fit") == "b"
    assert chosen(wanted, workers, selection="min_satisfying") == "a"


def test_the_score_is_the_documented_one() -> None:
    """λ·T̂ − (1−λ)·Ĉ with T = 100·GPUs + VRAM + RAM/2 + cores/2, both between 0 and 1 over the pool."""
    dear = worker("dear", gpus=(A100,), cost_per_hour=4.0)
    middle = worker("middle", gpus=(SMALL,), cost_per_hour=2.0)
    cheap = worker("cheap", cost_per_hour=1.0)
    ranking = Ranking(Policy(jitter=0.0), need(), [dear, middle, cheap])
    assert ranking.score(dear) == pytest.approx(0.8 * 1.0 - 0.2 * 1.0)
    assert ranking.score(cheap) == pytest.approx(0.0)
    assert ranking.score(middle) == pytest.approx(0.8 * 124.0 / 180.0 - 0.2 * (1.0 / 3.0))
    other = Ranking(Policy(jitter=0.0), Requirement("inference", "job"), [dear, middle, cheap])
    assert other.score(dear) == pytest.approx(0.4 - 0.6)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, "fast"), (0.0, "cheap")])
def test_lambda_weighs_throughput_against_cost(weight: float, expected: str) -> None:
    workers = [worker("fast", gpus=(A100,), cost_per_hour=9.0), worker("cheap", gpus=(RTX,))]
    lambdas = {"training": weight, "inference": 1.0 - weight, "other": 1.0 - weight}
    assert chosen(need(gpu_count=1), workers, lambdas=lambdas) == expected


def test_a_worker_that_fills_up_falls_behind_an_equal_one() -> None:
    workers = [worker(name, slots={"job": 4}, free={"job": 4}) for name in "ab"]
    found = plan([Candidate(f"t{n}", need(), float(n)) for n in range(4)], workers).assignments
    assert sorted(each.worker_id for each in found) == ["a", "a", "b", "b"]


def test_jitter_spreads_equal_workers_by_need_and_no_further() -> None:
    workers = [worker(f"w{n}") for n in range(8)]
    kinds = {chosen(need(model=f"m{n}"), workers) for n in range(20)}
    assert len(kinds) > 2
    assert {chosen(need(model=f"m{n}"), workers, jitter=0.0) for n in range(20)} == {"w0"}
    better = [*workers, worker("z", gpus=(A100,))]
    assert {chosen(need(model=f"m{n}"), better) for n in range(20)} == {"z"}


@pytest.mark.parametrize("selection", ["best_fit", "first_fit", "min_satisfying"])
def test_workers_that_have_model_and_data_come_first_if_wanted(selection: Selection) -> None:
    wanted = need(model="org/model", datasets=("org/data",))
    both = worker("both", cached=frozenset({"org/model", "org/data"}))
    one = worker("one", cached=frozenset({"org/model"}), cpu=16)
    none = worker("none", cpu=32, memory_bytes=64 << 30)
    least = worker("least", cpu=1, memory_bytes=1 << 30)
    assert chosen(wanted, [least, none, one, both], selection=selection) == "both"
    assert chosen(wanted, [least, none, one], selection=selection) == "one"
    unmoved = "least" if selection == "min_satisfying" else "none"
    assert chosen(wanted, [least, none, one, both], selection=selection, reuse=False) == unmoved


def test_devices_are_given_by_name_the_smallest_that_suits_first() -> None:
    mixed = worker(
        slots={"job": 3}, free={"job": 3},
        gpus=(replace(A100, uuid="GPU-big"), replace(SMALL, uuid="GPU-small")),
    )  # fmt: skip
    wanted = [Candidate("any", need(gpu_count=1), 0.0), Candidate("large", need(gpu_count=1, gpu_type="a100"), 1.0)]
    found = {each.task_id: each.gpus for each in plan(wanted, [mixed]).assignments}
    assert found == {"any": ("GPU-small",), "large": ("GPU-big",)}


def test_fault_27_a_task_for_two_devices_of_a_type_does_not_get_one_of_another() -> None:
    mixed = worker(gpus=(A100, Device("NVIDIA GeForce RTX 2080", 8 << 30)))
    assert plan([Candidate("t", need(gpu_count=2, gpu_type="a100"), 0.0)], [mixed]).assignments == ()


def test_fault_28_a_task_for_one_gpu_gets_one_and_one_that_may_have_several_all() -> None:
    eight = worker(gpus=tuple(replace(A100, uuid=f"GPU-{n}") for n in range(8)))
    one = plan([Candidate("t", need(gpu_count=1), 0.0)], [eight]).assignments[0]
    unsaid = plan([Candidate("t", need(gpu_count=1, gpu_optional=True), 0.0)], [eight]).assignments[0]
    several = plan([Candidate("t", need(gpu_count=1, gpu_all=True), 0.0)], [eight]).assignments[0]
    assert (len(one.gpus), len(unsaid.gpus), len(several.gpus)) == (1, 1, 8)


def test_fault_31_a_worker_that_cannot_run_a_kind_never_gets_it() -> None:
    without = worker("without", gpus=(A100, A100), executors={"lora_sft": "trl is not installed"})
    assert chosen(need(), [without, worker("with")]) == "with"
    assert plan([Candidate("t", need(), 0.0)], [without]).assignments == ()


def test_a_workers_id_is_a_tag_of_its_own_even_among_workers_that_are_alike() -> None:
    workers = [worker(name, hardware_group=7) for name in ("first", "second", "third")]
    pinned = need(tags=("second",))
    assert [each.id for each in able(pinned, workers)] == ["second"]
    assert [each.id for each in able(pinned, reversed(workers))] == ["second"]
    assert chosen(pinned, workers) == "second"
    assert lacks(pinned, workers[0]) == "lacks the tag second"


def test_fault_32_tags_are_heeded() -> None:
    workers = [worker("big", gpus=(A100,)), worker("tagged", tags=frozenset({"lab", "ssd"}))]
    assert chosen(need(tags=("lab",)), workers) == "tagged"
