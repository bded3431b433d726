"""Whether a Ray cluster can give what is asked, and in which words it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.clusters import Ask
from tunefleet.programs.ray_nodes.reasons import Machine, bundle, outlook

SMALL = Machine("a", {"CPU": 4.0, "memory": 8e9}, {"CPU": 4.0, "memory": 8e9})
BUSY = Machine("b", {"CPU": 4.0, "GPU": 2.0, "memory": 64e9}, {"CPU": 4.0, "memory": 64e9})
FREE = Machine("c", {"CPU": 4.0, "GPU": 2.0, "memory": 64e9}, {"CPU": 4.0, "GPU": 2.0, "memory": 64e9})


def _ask(nodes: int = 2, **further: Any) -> Ask:
    return Ask("t-1", nodes, nodes, ("true",), {}, **further)


def test_a_bundle_has_a_core_and_what_is_asked() -> None:
    assert bundle(_ask()) == {"CPU": 1.0}
    assert bundle(_ask(cpu=4, gpu_count=2, memory_bytes=10)) == {"CPU": 4.0, "GPU": 2.0, "memory": 10.0}


def test_gpus_of_another_type_do_not_do() -> None:
    other = Machine("d", {**FREE.total, "accelerator_type:T4": 1.0}, FREE.free)
    ask = _ask(1, gpu_count=2, gpu_type="a100")
    seen = outlook(ask, [FREE, other], autoscaled=False)
    assert (seen.could, seen.hopeless) == (0, True)
    assert seen.never.startswith("No node of the Ray cluster has 2 GPUs (A100) and 1 CPU, and no")
    good = Machine("e", {**FREE.total, "accelerator_type:A100": 1.0}, FREE.free)
    assert outlook(ask, [other, good], autoscaled=False).could == 1
    assert "accelerator_type:A100" not in bundle(_ask(gpu_type="a100")), "without GPUs it matters not"


def test_machines_that_are_busy_are_waited_for() -> None:
    seen = outlook(_ask(gpu_count=2, cpu=3, memory_bytes=16_000_000_000), [SMALL, BUSY, FREE], autoscaled=False)
    assert (seen.could, seen.now, seen.lacking, seen.hopeless) == (2, 1, False, False)
    assert seen.why(60) == (
        "2 nodes with 2 GPUs, 3 CPUs and 16.0 GB of memory wanted: of the Ray cluster's 3 nodes 2 have that, "
        "1 has it free now"
    )


@pytest.mark.parametrize(
    ("autoscaled", "hope"),
    [(True, "Ray's autoscaler is asked for more"), (False, "more may join"), (None, "more may join")],
)
def test_machines_that_are_not_there_are_waited_for_with_patience(autoscaled: bool | None, hope: str) -> None:
    seen = outlook(_ask(gpu_count=1), [SMALL, FREE], autoscaled=autoscaled)
    assert (seen.could, seen.lacking, seen.hopeless) == (1, True, False)
    assert seen.why(60) == (
        f"2 nodes with 1 GPU and 1 CPU wanted: of the Ray cluster's 2 nodes 1 has that; {hope}, for at most 60 s"
    )


def test_without_a_machine_or_an_autoscaler_it_is_hopeless() -> None:
    assert [outlook(_ask(1, gpu_count=1), [SMALL], autoscaled=told).hopeless for told in (False, True, None)] == [
        True, False, False,
    ]  # fmt: skip
    seen = outlook(_ask(1, gpu_count=3), [BUSY, FREE], autoscaled=False)
    assert (
        seen.never
        == "No node of the Ray cluster has 3 GPUs and 1 CPU, and no autoscaler runs there that could bring one."
    )
