"""The figures of GPUs, from a fake driver: NVML as a double module, `nvidia-smi` as a fake executable."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime.gpu.info import GpuFigures, read_gpus
from tunefleet.runtime.monitor.system import SystemReader

FAKE_NVML = Path(__file__).parents[2] / "fakes" / "nvml" / "pynvml.py"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the NVML double; returns a function that says which GPUs there are."""
    spec = importlib.util.spec_from_file_location("pynvml", FAKE_NVML)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus.json"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return lambda *gpus: (tmp_path / "gpus.json").write_text(json.dumps({"gpus": gpus}))


def test_nvml_tells_everything(driver: Any) -> None:
    driver(
        {
            "uuid": "GPU-a", "name": "Fake RTX", "total": 8 << 30, "used": 3 << 30, "utilisation": 97,
            "temperature": 71, "power_mw": 215_500, "mig": [],
            "compute": [[12, 2 << 30], [7, None]], "graphics": [[12, 2 << 30], [3, 5 << 20]],
        }
    )  # fmt: skip
    (gpu,) = read_gpus()
    assert (gpu.index, gpu.uuid, gpu.name) == (0, "GPU-a", "Fake RTX")
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.memory_free_bytes) == (3 << 30, 8 << 30, 5 << 30)
    assert (gpu.utilisation_percent, gpu.temperature_c, gpu.power_w) == (97.0, 71.0, 215.5)
    # What computes and draws at once computes.
    assert gpu.processes == ((3, 5 << 20, "graphics"), (7, None, "compute"), (12, 2 << 30, "compute"))


def test_what_the_driver_does_not_support_is_none_and_the_rest_is_there(driver: Any) -> None:
    driver({"uuid": "GPU-a", "name": "Fake GB10"}, {"uuid": "GPU-b", "name": "Fake T4", "total": 9, "used": 4})
    first, second = read_gpus()
    assert first == GpuFigures(0, "GPU-a", "Fake GB10")
    assert first.memory_free_bytes is None
    assert (second.index, second.memory_free_bytes, second.power_w) == (1, 5, None)


def test_mig_instances_stand_for_their_gpu(driver: Any) -> None:
    slices: list[dict[str, Any]] = [
        {"uuid": f"MIG-{n}", "name": "Fake H100 MIG 1g.10gb", "total": 10, "used": n, "compute": []} for n in (1, 2)
    ]
    driver({"uuid": "GPU-a", "name": "Fake H100", "temperature": 50, "power_mw": 90_000, "mig": slices})
    found = read_gpus()
    assert [(gpu.index, gpu.uuid, gpu.memory_used_bytes) for gpu in found] == [(0, "MIG-1", 1), (0, "MIG-2", 2)]
    assert all(gpu.utilisation_percent is None and gpu.temperature_c == 50.0 for gpu in found)


def test_the_machine_is_read_by_the_kernels_figures(tmp_path: Path) -> None:
    reader = SystemReader(tmp_path)
    assert reader.read().cpu_percent is None  # a load is one between two looks
    figures = reader.read()
    assert figures.cpu_percent is not None
    assert 0 < figures.memory_used_bytes < figures.memory_total_bytes
    assert figures.disk_free_bytes is not None
    assert 0 < figures.disk_free_bytes <= shutil.disk_usage(tmp_path).total
    assert SystemReader(tmp_path / "gone").read().disk_free_bytes is None
