"""The machine as the worker describes it, and how its jobs share it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tunefleet.errors import MachineError
from tunefleet.executors.base import missing
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.executors.registry import Registry
from tunefleet.runtime import environment
from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.schemas.worker_link import ExecutorOffer, Offer
from tunefleet.settings import WorkerSettings
from tunefleet.worker import main as worker_main
from tunefleet.worker.machine import probe
from tunefleet.worker.verbs import ChangeDetector

GIB = 1 << 30
MACHINE = (
    GpuFigures(0, "GPU-00", "NVIDIA A100", 70 * GIB, 80 * GIB),
    GpuFigures(1, "GPU-01", "NVIDIA A100", 0, 80 * GIB),
    GpuFigures(2, "GPU-02", "NVIDIA RTX 2080", 0, 8 * GIB),
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver name three."""
    monkeypatch.setattr(probe, "read_gpus", lambda: MACHINE)
    monkeypatch.setattr(worker_main, "read_gpus", lambda: MACHINE)


def test_capabilities_name_slots_tags_and_what_the_machine_has(tmp_path: Path) -> None:
    settings = WorkerSettings(job_slots=2, light_slots=5, tags=("lab", "a100"))
    found = probe.capabilities(settings, (ExecutorOffer(kind="echo"),), results_dir=tmp_path)
    assert found.slots == {"job": 2, "light": 5}
    assert found.tags == ("lab", "a100")
    assert found.cpu_count >= 1
    assert 0 < found.memory_free_bytes <= found.memory_total_bytes
    assert found.disk_free_bytes > 0
    assert found.executors[0].kind == "echo"


@pytest.mark.usefixtures("gpus")
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
def test_cuda_visible_devices_is_applied_as_cuda_does(
    tmp_path: Path, variable: str | None, expected: list[int]
) -> None:
    settings = WorkerSettings(visible_gpus=variable)
    told = probe.capabilities(settings, (), results_dir=tmp_path).gpus
    assert [gpu.index for gpu in told] == expected
    assert all(gpu.memory_total_bytes == MACHINE[gpu.index].memory_total_bytes for gpu in told)


@pytest.mark.usefixtures("gpus")
def test_a_task_on_several_gpus_gets_as_many_or_none(tmp_path: Path) -> None:
    settings = WorkerSettings(home=tmp_path)
    spec: dict[str, object] = {
        "taskType": "sft",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"prompts": ["a"]},
    }
    two = {**spec, "resources": {"hardware": {"gpu": {"count": 2, "type": "a100"}}}}
    assert worker_main._choose_gpus(settings, None, offer(two)) == ("GPU-01", "GPU-00")
    assert worker_main._choose_gpus(settings, None, offer(two, "GPU-00", "GPU-01")) == ("GPU-00", "GPU-01")
    assert worker_main._choose_gpus(settings, None, offer(two, "GPU-07", "GPU-01")) == ("GPU-01", "GPU-00")
    four = {**spec, "resources": {"hardware": {"gpu": {"count": 4}}}}
    with pytest.raises(MachineError, match="3 of 4 match"):
        worker_main._choose_gpus(settings, None, offer(four))


def offer(spec: dict[str, object], *gpus: str) -> Offer:
    given = {"token": "t", "task_id": "task-1", "workflow_id": "wf-1", "attempt": 1, "kind": "sft", "name": "t"}
    return Offer(**given, spec=spec, gpus=gpus)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slots", "named", "expected"), [(1, None, None), (2, None, "4"), (3, None, "2"), (16, None, "1"), (2, 7, "7")]
)
def test_jobs_share_the_cores(
    slots: int, named: int | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_main, "core_count", lambda: 8)
    settings = WorkerSettings(job_slots=slots, torch_threads=named)
    assert worker_main._threads(settings).get("OMP_NUM_THREADS") == expected


def test_cores_are_those_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000\n")
    monkeypatch.setattr(environment, "_QUOTA", quota)
    assert probe.capabilities(WorkerSettings(), (), results_dir=tmp_path).cpu_count == 1


def test_a_cache_tells_when_something_was_fetched_whole_or_removed(tmp_path: Path) -> None:
    cache = ChangeDetector(lambda: probe.cached_models(tmp_path / "hub"))
    assert not cache.changed(), "it need not exist"
    model = tmp_path / "hub" / "models--org--one"
    (model / "blobs").mkdir(parents=True)
    assert not cache.changed(), "a download that is not whole is of no use"
    (model / "snapshots" / "abc").mkdir(parents=True)
    assert (cache.changed(), cache.changed()) == (True, False)
    shutil.rmtree(model)
    assert cache.changed()


def test_a_package_that_is_installed_while_the_worker_runs_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanting(EchoExecutor):
        def unavailable_reason(self) -> str | None:
            return missing("tunefleet_wanted", extra="train")

    monkeypatch.syspath_prepend(tmp_path)
    executors = Registry([Wanting()])
    ground = ChangeDetector(executors.offers)
    assert not ground.changed()
    (tmp_path / "tunefleet_wanted").mkdir()
    (tmp_path / "tunefleet_wanted" / "__init__.py").touch()
    assert (ground.changed(), ground.changed()) == (True, False)
    assert executors.offers()[0].available


def test_what_the_hub_cache_has_is_told_by_its_folders(tmp_path: Path) -> None:
    for name in ("models--org--one", "datasets--org--data", "models--gpt2", "models--org--broken", ".locks"):
        (tmp_path / name / ("blobs" if "broken" in name else "snapshots/abc")).mkdir(parents=True)
    settings = WorkerSettings(hub_cache=tmp_path)
    told = probe.capabilities(settings, (), results_dir=tmp_path, secrets=("TOKEN",))
    assert (told.cached_models, told.cached_datasets) == (("gpt2", "org/one"), ("org/data",))
    assert told.secrets == ("TOKEN",)
    assert probe.capabilities(WorkerSettings(hub_cache=tmp_path / "no"), (), results_dir=tmp_path).cached_models == ()
