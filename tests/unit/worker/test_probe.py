"""The machine as the worker describes it, and how its jobs share it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.settings import WorkerSettings
from tunefleet.wire.link import ExecutorOffer
from tunefleet.worker import main as worker_main
from tunefleet.worker import probe


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
    ("slots", "named", "expected"), [(1, None, None), (2, None, "4"), (3, None, "2"), (16, None, "1"), (2, 7, "7")]
)
def test_jobs_share_the_cores(
    slots: int, named: int | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_main, "core_count", lambda: 8)
    settings = WorkerSettings(job_slots=slots, torch_threads=named)
    assert worker_main._threads(settings).get("OMP_NUM_THREADS") == expected
