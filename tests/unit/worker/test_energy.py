"""What GPUs have used, from readings of their power."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.schemas.worker_link import GpuLoad
from tunefleet.settings import WorkerSettings
from tunefleet.worker.machine import probe
from tunefleet.worker.machine.probe import EnergyMeter


def _gpus(**power_w: float | None) -> list[GpuLoad]:
    return [GpuLoad(uuid=uuid, power_w=watts) for uuid, watts in power_w.items()]


def test_power_is_added_up_over_the_time_between_two_readings() -> None:
    meter = EnergyMeter()
    assert meter.read(_gpus(a=100.0, b=50.0), now=1000.0) == 0.0
    assert meter.read(_gpus(a=300.0, b=50.0), now=1030.0) == 30 * (200 + 50)
    assert meter.read(_gpus(a=300.0, b=50.0), now=1090.0) == 30 * 250 + 60 * 350


def test_energy_is_unknown_until_a_gpu_tells_its_power() -> None:
    meter = EnergyMeter()
    assert meter.read([], now=0.0) is None
    assert meter.read(_gpus(a=None), now=30.0) is None
    assert meter.read(_gpus(a=100.0), now=60.0) == 0.0


def test_a_while_without_a_reading_adds_nothing() -> None:
    meter = EnergyMeter()
    meter.read(_gpus(a=100.0, b=100.0), now=0.0)
    assert meter.read(_gpus(a=100.0, b=None), now=10.0) == 1000.0
    assert meter.read(_gpus(a=100.0, b=100.0), now=20.0) == 2000.0, "nobody knows what b drew meanwhile"
    assert meter.read(_gpus(a=100.0, b=100.0), now=30.0) == 4000.0


def test_a_heartbeat_carries_what_the_gpus_of_this_worker_have_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = GpuFigures(0, "GPU-00", "NVIDIA A100", 70 << 30, 80 << 30, power_w=400.0)
    other = replace(mine, index=1, uuid="GPU-01", power_w=99.0)
    monkeypatch.setattr(probe, "read_gpus", lambda: (mine, other))
    moments = iter((100.0, 130.0))
    monkeypatch.setattr(probe.time, "monotonic", lambda: next(moments))
    settings, meter = WorkerSettings(visible_gpus="0"), EnergyMeter()
    told = [probe.load(settings, results_dir=tmp_path, meter=meter) for _ in range(2)]
    assert [each.gpu_energy_j for each in told] == [0.0, 12_000.0]
