"""Which GPUs of a machine a job gets, by their claims on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefleet.errors import MachineError
from tunefleet.runtime import gpu_allocation
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor


def _gpu(index: int, name: str = "NVIDIA A100", *, memory: int = 80, free: int = 80) -> GpuFigures:
    return GpuFigures(index, f"GPU-{index:02d}", name, (memory - free) << 30, memory << 30)


MACHINE = (_gpu(0, free=10), _gpu(1), _gpu(2, "NVIDIA RTX 2080", memory=8, free=8))


def _spec(**gpu: object) -> dict[str, object]:
    spec: dict[str, object] = {
        "taskType": "sft",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"prompts": ["a"]},
    }
    if gpu:
        spec["resources"] = {"hardware": {"gpu": gpu}}
    return spec


def _chosen(spec: dict[str, object], ledger: Path, machine: tuple[GpuFigures, ...] = MACHINE) -> tuple[str, ...]:
    return gpu_allocation.choose(spec, machine, ledger=ledger, gpu_monitor=None)


def test_a_task_gets_the_free_gpu_with_the_most_memory(tmp_path: Path) -> None:
    assert _chosen(_spec(), tmp_path) == ("GPU-01",)


def test_type_and_memory_must_both_fit(tmp_path: Path) -> None:
    assert _chosen(_spec(count=1, type="rtx"), tmp_path) == ("GPU-02",)
    with pytest.raises(MachineError, match="none matches"):
        _chosen(_spec(count=1, type="rtx", memory="20Gi"), tmp_path)
    with pytest.raises(MachineError, match="1 of 2 match") as few:
        _chosen(_spec(count=2, type="rtx"), tmp_path)
    assert not isinstance(few.value, gpu_locks.GpuBusyError), "waiting does not help"
    untold = (GpuFigures(0, "GPU-a", "Fake GB10"),)
    assert _chosen(_spec(count=1), tmp_path, untold) == ("GPU-a",)
    with pytest.raises(MachineError, match="none matches"):
        _chosen(_spec(count=1, memory="1Gi"), tmp_path, untold)


def test_a_gpu_that_somebody_has_claimed_is_left_alone(tmp_path: Path) -> None:
    held = gpu_locks.claim(tmp_path, ["GPU-00"], "a") + gpu_locks.claim(tmp_path, ["GPU-01"], "b")
    assert _chosen(_spec(), tmp_path) == ("GPU-02",)
    with pytest.raises(gpu_locks.GpuBusyError, match="A100 by job a"):
        _chosen(_spec(count=1, type="a100"), tmp_path)
    for fd in held:
        os.close(fd)


def test_a_gpu_that_others_use_is_left_alone_and_told(tmp_path: Path) -> None:
    # The driver of the fake names no processes: what it says of the memory shows that somebody is there.
    machine = (_gpu(0, free=10), _gpu(1, free=70))
    gpu_monitor = GpuContentionMonitor(tmp_path, idle_s=60, read=lambda: machine)
    gpu_monitor.look()
    assert gpu_allocation.choose(_spec(), machine, ledger=tmp_path, gpu_monitor=gpu_monitor) == ("GPU-01",)
    with pytest.raises(
        gpu_locks.GpuBusyError, match=r"1 of 2 GPUs are free for the task \(NVIDIA A100 by another process"
    ):
        gpu_allocation.choose(_spec(count=2), machine, ledger=tmp_path, gpu_monitor=gpu_monitor)
    told = gpu_allocation.described((*machine, GpuFigures(2, "GPU-c", "Fake GB10")), gpu_monitor.in_use())
    assert [(gpu.uuid, (gpu.in_use_by or "").split(" (")[0], gpu.memory_free_bytes) for gpu in told] == [
        ("GPU-00", "another process", 10 << 30), ("GPU-01", "", 70 << 30), ("GPU-c", "", None),
    ]  # fmt: skip
    assert told[2].memory_total_bytes == 0


def test_no_gpu_is_needed_where_there_is_none_or_none_is_wanted(tmp_path: Path) -> None:
    assert _chosen(_spec(count=1), tmp_path, ()) == ()
    assert _chosen(_spec(count=0), tmp_path) == ()


def _trained(**training: object) -> dict[str, object]:
    return {**_spec(), "training": training}


FOUR = tuple(_gpu(number, free=80 - number) for number in range(4))


def test_fault_28_a_task_gets_one_gpu_unless_it_may_have_all(tmp_path: Path) -> None:
    assert _chosen(_trained(), tmp_path, FOUR) == ("GPU-00",)
    assert _chosen(_trained(allow_multi_gpu=True), tmp_path, FOUR) == ("GPU-00", "GPU-01", "GPU-02", "GPU-03")
    counted = {**_trained(allow_multi_gpu=True), "resources": {"hardware": {"gpu": {"count": 2}}}}
    assert len(_chosen(counted, tmp_path, FOUR)) == 2
    of_a_type = {**_trained(allow_multi_gpu=True), "resources": {"hardware": {"gpu": {"type": "A100"}}}}
    assert sorted(_chosen(of_a_type, tmp_path)) == ["GPU-00", "GPU-01"]


def test_devices_are_named_by_their_number_and_the_primary_one_comes_first(tmp_path: Path) -> None:
    assert sorted(_chosen(_trained(visible_devices="1,3"), tmp_path, FOUR)) == ["GPU-01", "GPU-03"]
    assert _chosen(_trained(visible_devices=[1, 3], primary_gpu=3), tmp_path, FOUR) == ("GPU-03", "GPU-01")
    assert _chosen(_trained(primary_gpu=2), tmp_path, FOUR) == ("GPU-02",)
    assert _chosen(_trained(allow_multi_gpu=True, nproc_per_node=2, primary_gpu=3), tmp_path, FOUR)[0] == "GPU-03"
    with pytest.raises(MachineError, match="none matches"):
        _chosen(_trained(visible_devices="7"), tmp_path, FOUR)
