"""From the documents' variables to how files come and leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.artifacts import Packing
from tunefleet.errors import MachineError
from tunefleet.settings import WorkerSettings, load, unsupported
from tunefleet.worker import transfers
from tunefleet.worker.machine import probe


def of(tmp_path: Path) -> transfers.Transfers:
    return transfers.of(load(WorkerSettings), tmp_path / "results")


def test_the_defaults_are_those_of_the_document(tmp_path: Path) -> None:
    found = of(tmp_path)
    assert found.packing == Packing(level=None, pigz="pigz", threads=None)
    assert (found.throttle, found.cleanup) == (None, False)
    assert found.folders == (tmp_path / "results",)


def test_every_variable_of_the_document_has_its_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC": "1000000",
        "MODEL_ARCHIVE_COMPRESSION_LEVEL": "12",
        "MODEL_ARCHIVE_PIGZ_BIN": "/usr/local/bin/pigz",
        "MODEL_ARCHIVE_PIGZ_THREADS": "3",
        "MODEL_CLEANUP_AFTER_UPLOAD": "1",
        "ORCHESTRATOR_BASE_URL": "http://10.0.0.5:8000",
        "TUNEFLEET_SHARED_DIRS": f"{tmp_path}/mount,{tmp_path}/other",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = of(tmp_path)
    assert found.packing == Packing(level=9, pigz="/usr/local/bin/pigz", threads=3)
    assert found.throttle is not None
    assert found.throttle.bytes_per_s == 1_000_000
    assert (found.cleanup, found.server_url) == (True, "http://10.0.0.5:8000")
    assert found.folders == (tmp_path / "results", tmp_path / "mount", tmp_path / "other")
    told = probe.capabilities(load(WorkerSettings), (), results_dir=tmp_path)
    assert told.bandwidth_bytes_per_s == 1_000_000
    monkeypatch.setenv("MODEL_ARCHIVE_USE_PIGZ", "0")
    monkeypatch.setenv("MODEL_ARCHIVE_COMPRESSION_LEVEL", "-1")
    assert of(tmp_path).packing == Packing(level=0, pigz=None, threads=3)


@pytest.mark.parametrize("value", ["0", "-5", "fast"])
def test_a_bandwidth_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC", value)
    with pytest.raises(MachineError, match="WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC"):
        load(WorkerSettings)


def test_the_archive_program_that_is_not_used_is_named_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_ARCHIVE_TAR_BIN", "/usr/bin/gtar")
    (sentence,) = unsupported("worker")
    assert "MODEL_ARCHIVE_TAR_BIN" in sentence
