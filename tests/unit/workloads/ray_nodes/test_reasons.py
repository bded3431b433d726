"""Whether a Ray cluster can give what is asked, and in which words it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.integrations.clusters import NodeRequest
from tunefleet.workloads.ray_nodes.diagnostics import Machine, bundle, capacity_of

SMALL = Machine("a", {"CPU": 4.0, "memory": 8e9}, {"CPU": 4.0, "memory": 8e9})
BUSY = Machine("b", {"CPU": 4.0, "GPU": 2.0, "memory": 64e9}, {"CPU": 4.0, "memory": 64e9})
FREE = Machine("c", {"CPU": 4.0, "GPU": 2.0, "memory": 64e9}, {"CPU": 4.0, "GPU": 2.0, "memory": 64e9})


def _ask(nodes: int = 2, **further: Any) -> NodeRequest:
    return NodeRequest("t-1", nodes, nodes, ("true",), {}, **further)


def test_a_bundle_has_a_core_and_what_is_asked() -> None:
    assert bundle(_ask()) == {"CPU": 1.0}
    assert bundle(_ask(cpu=4, gpu_count=2, memory_bytes=10)) == {"CPU": 4.0, "GPU": 2.0, "memory": 10.0}


def test_gpus_of_another_type_do_not_do() -> None:
    other = Machine("d", {**FREE.total, "accelerator_type:T4": 1.0}, FREE.free)
    ask = _ask(1, gpu_count=2, gpu_type="a100")
    seen = capacity_of(ask, [FREE, other], autoscaled=False)
    assert (seen.could, seen.hopeless) == (0, True)
    assert seen.never.startswith(
        "No node of the Ray cluster has 2 GPUs (A100) and 1 CPU (there are GPUs of T4), and there is no"
    )
    assert "none qualifies (there are GPUs of T4); " in seen.why(60)
    assert "GPUs of no type known to Ray" in capacity_of(ask, [FREE], autoscaled=False).never
    good = Machine("e", {**FREE.total, "accelerator_type:A100": 1.0}, FREE.free)
    assert capacity_of(ask, [other, good], autoscaled=False).could == 1
    assert "accelerator_type:A100" not in bundle(_ask(gpu_type="a100")), "without GPUs it matters not"


@pytest.mark.parametrize(
    ("wanted", "there", "taken"),
    [
        ("a100-sxm4-80gb", ["T4", "A100"], "A100"),
        ("Tesla T4", ["T4", "A100"], "T4"),
        ("RTX 4090", ["GeForce-RTX-4090", "RTX-A6000"], "GeForce-RTX-4090"),
        ("nvidia rtx a6000", ["GeForce-RTX-4090", "RTX-A6000"], "RTX-A6000"),
        ("A10", ["A100", "A10", "A10G"], "A10"),
        ("A10", ["A100", "A100", "A10"], "A10"),
        ("RTX", ["GeForce-RTX-4090", "RTX-A6000", "RTX-A6000"], "RTX-A6000"),
        ("H200", ["H20", "GH200"], "GH200"),
        ("A40", [], "A40"),
        ("nvidia a100-sxm4-80gb", [], "A100"),
        ("GeForce RTX 4090", ["T4"], "GeForce-RTX-4090"),
    ],
)
def test_a_type_is_asked_for_as_the_nodes_call_it(wanted: str, there: list[str], taken: str) -> None:
    machines = [Machine(name, {**FREE.total, f"accelerator_type:{name}": 1.0}, FREE.free) for name in there]
    need = bundle(_ask(1, gpu_count=1, gpu_type=wanted), machines)
    assert [name for name in need if ":" in name] == [f"accelerator_type:{taken}"]


def test_a_type_of_which_enough_nodes_are_there_goes_before_the_very_name() -> None:
    machines = [
        Machine(name, {**FREE.total, f"accelerator_type:{name}": 1.0}, FREE.free) for name in ("L4", *["L40S"] * 2)
    ]
    assert "accelerator_type:L4" in bundle(_ask(1, gpu_count=1, gpu_type="L4"), machines)
    assert "accelerator_type:L40S" in bundle(_ask(2, gpu_count=1, gpu_type="L4"), machines)


def test_machines_that_are_busy_are_waited_for() -> None:
    seen = capacity_of(_ask(gpu_count=2, cpu=3, memory_bytes=16_000_000_000), [SMALL, BUSY, FREE], autoscaled=False)
    assert (seen.could, seen.now, seen.lacking, seen.hopeless) == (2, 1, False, False)
    assert seen.why(60) == (
        "Needs 2 nodes with 2 GPUs, 3 CPUs and 16.0 GB of memory; of the Ray cluster's 3 nodes, 2 qualify and 1 is free"
    )


@pytest.mark.parametrize(
    ("autoscaled", "hope"),
    [(True, "waiting for Ray's autoscaler"), (False, "waiting for more nodes"), (None, "waiting for more nodes")],
)
def test_machines_that_are_not_there_are_waited_for_with_patience(autoscaled: bool | None, hope: str) -> None:
    seen = capacity_of(_ask(gpu_count=1), [SMALL, FREE], autoscaled=autoscaled)
    assert (seen.could, seen.lacking, seen.hopeless) == (1, True, False)
    assert seen.why(60) == (
        f"Needs 2 nodes with 1 GPU and 1 CPU; of the Ray cluster's 2 nodes, 1 qualifies; {hope}, at most 60 s"
    )


def test_without_a_machine_or_an_autoscaler_it_is_hopeless() -> None:
    assert [capacity_of(_ask(1, gpu_count=1), [SMALL], autoscaled=told).hopeless for told in (False, True, None)] == [
        True, False, False,
    ]  # fmt: skip
    seen = capacity_of(_ask(1, gpu_count=3), [BUSY, FREE], autoscaled=False)
    assert (
        seen.never == "No node of the Ray cluster has 3 GPUs and 1 CPU, and there is no autoscaler that could add one."
    )
