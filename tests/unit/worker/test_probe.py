"""The machine as the worker describes it, and which of its GPUs a job gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.errors import MachineError
from tunefleet.settings import WorkerSettings
from tunefleet.wire.link import ExecutorOffer, Gpu
from tunefleet.worker import gpus, probe
from tunefleet.worker import main as worker_main


def _gpu(index: int, name: str = "NVIDIA A100", *, memory: int = 80, free: int = 80) -> Gpu:
    return Gpu(
        index=index, name=name, uuid=f"GPU-{index:02d}", memory_total_bytes=memory << 30, memory_free_bytes=free << 30
    )


MACHINE = (_gpu(0, free=10), _gpu(1), _gpu(2, "NVIDIA RTX 2080", memory=8, free=8))


def test_capabilities_name_slots_tags_and_what_the_machine_has(tmp_path: Path) -> None:
    settings = WorkerSettings(job_slots=2, light_slots=5, tags=("lab", "a100"))
    found = probe.capabilities(settings, (ExecutorOffer(kind="echo"),), results_dir=tmp_path)
    assert found.slots == {"job": 2, "light": 5}
    assert found.tags == ("lab", "a100")
    assert found.cpu_count >= 1
    assert 0 < found.memory_free_bytes <= found.memory_total_bytes
    assert found.disk_free_bytes > 0
    assert found.executors[0].kind == "echo"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),
        ("-1", []),
        ("GPU-01", [1]),
        ("GPU-0", []),
    ],
)
def test_cuda_visible_devices_is_applied_as_cuda_does(variable: str | None, expected: list[int]) -> None:
    assert [gpu.index for gpu in probe.visible_gpus(MACHINE, variable)] == expected


def _spec(**gpu: object) -> dict[str, object]:
    spec: dict[str, object] = {
        "taskType": "sft",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"prompts": ["a"]},
    }
    if gpu:
        spec["resources"] = {"hardware": {"gpu": gpu}}
    return spec


def _nobody(_: str) -> None:
    return None


def test_a_task_gets_the_free_gpu_with_the_most_memory() -> None:
    assert gpus.choose(_spec(), MACHINE, holder=_nobody) == ("GPU-01",)


def test_type_and_memory_must_both_fit() -> None:
    assert gpus.choose(_spec(count=1, type="rtx"), MACHINE, holder=_nobody) == ("GPU-02",)
    with pytest.raises(MachineError, match="none fits"):
        gpus.choose(_spec(count=1, type="rtx", memory="20Gi"), MACHINE, holder=_nobody)


def test_a_gpu_that_somebody_has_claimed_is_left_alone() -> None:
    taken = {"GPU-00": "job a", "GPU-01": "job b"}
    assert gpus.choose(_spec(), MACHINE, holder=taken.get) == ("GPU-02",)
    with pytest.raises(MachineError, match="A100 by job a"):
        gpus.choose(_spec(count=1, type="a100"), MACHINE, holder=taken.get)


def test_a_task_on_several_gpus_gets_as_many_or_none() -> None:
    assert gpus.choose(_spec(count=2), MACHINE, holder=_nobody) == ("GPU-01", "GPU-00")
    with pytest.raises(MachineError, match="1 of 2 fit"):
        gpus.choose(_spec(count=2, type="rtx"), MACHINE, holder=_nobody)


def test_no_gpu_is_needed_where_there_is_none_or_none_is_wanted() -> None:
    assert gpus.choose(_spec(count=1), (), holder=_nobody) == ()
    assert gpus.choose(_spec(count=0), MACHINE, holder=_nobody) == ()


@pytest.mark.parametrize(
    ("slots", "named", "expected"), [(1, None, None), (2, None, "4"), (3, None, "2"), (16, None, "1"), (2, 7, "7")]
)
def test_jobs_share_the_cores(
    slots: int, named: int | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_main, "core_count", lambda: 8)
    settings = WorkerSettings(job_slots=slots, torch_threads=named)
    assert worker_main._threads(settings).get("OMP_NUM_THREADS") == expected
