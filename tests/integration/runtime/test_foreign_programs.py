"""Programs that jobs and agents run, each a script here: nvidia-smi for the figures of GPUs, and pip for an upgrade."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.test_gpuinfo import FAKE_NVML
from tunefleet.errors import MachineError
from tunefleet.runtime import self_upgrade
from tunefleet.runtime.gpu.info import read_gpus

MIB = 1 << 20
SERVER = "http://server.example:8000"
OFFER = f"tunefleet[train] @ {SERVER}/install/tunefleet-9.8-py3-none-any.whl"


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


def _fake_smi(tmp_path: Path, body: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/bash\n# A fake nvidia-smi.\n{body}\n")
    (folder / "nvidia-smi").chmod(0o755)


def test_nvidia_smi_stands_in_for_nvml(driver: Any, tmp_path: Path) -> None:
    _fake_smi(
        tmp_path,
        """
case "$1" in
  --query-gpu=*)
    echo '0, GPU-a, "Fake RTX, mobile", 1024, 8192, 12, 44, 31.25'
    echo '1, GPU-b, Fake H100, 512, 81559, [N/A], 50, [Not Supported]' ;;
  --query-compute-apps=*)
    echo 'GPU-a, 4242, 900'
    echo 'GPU-a, 4243, [N/A]' ;;
esac""",
    )
    first, second = read_gpus()
    assert (first.name, first.memory_used_bytes, first.memory_total_bytes) == (
        "Fake RTX, mobile",
        1024 * MIB,
        8192 * MIB,
    )
    assert (first.utilisation_percent, first.temperature_c, first.power_w) == (12.0, 44.0, 31.25)
    assert first.processes == ((4242, 900 * MIB, "compute"), (4243, None, "compute"))
    assert (second.utilisation_percent, second.power_w, second.processes) == (None, None, ())


@pytest.mark.parametrize("body", [None, "echo 'NVIDIA-SMI has failed' >&2; exit 9", "echo 'No devices were found'"])
def test_no_gpu_is_no_error_and_nothing_is_made_up(driver: Any, tmp_path: Path, body: str | None) -> None:
    if body is not None:
        _fake_smi(tmp_path, body)
    assert read_gpus() == ()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let this environment be ours to change, and return the file with what its interpreter was told."""
    python, told = tmp_path / "python", tmp_path / "told"
    python.write_text(
        f'#!/bin/bash\necho "$*" > {told}\necho done\n[[ "$*" != *9.9* ]] || {{ echo no >&2; exit 1; }}\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(self_upgrade, "refusal", lambda: None)
    monkeypatch.setattr(self_upgrade, "installed_from", lambda: SERVER)
    return told


def asked(url: str) -> str:
    assert url == f"{SERVER}/install"
    return OFFER


@pytest.mark.parametrize("version", ["9.8", None])
def test_pip_is_told_the_servers_own_package(ours: Path, version: str | None) -> None:
    assert self_upgrade.upgrade(version, who="agent", ask=asked) == "done\n"
    assert ours.read_text() == f"-m pip install --upgrade --no-input {OFFER}\n"


@pytest.mark.usefixtures("ours")
def test_the_last_words_of_pip_are_the_error() -> None:
    with pytest.raises(MachineError, match="pip failed: no"):
        self_upgrade.upgrade("9.9", who="worker", ask=lambda _: OFFER.replace("9.8", "9.9"))
