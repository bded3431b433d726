"""What the agent reports of a log: each line once under its number, also after the log was cut."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.agent.jobs.backend_sink import BackendSink
from tunefleet.agent.jobs.logtext import LogTimes
from tunefleet.runtime import job_log
from tunefleet.runtime.log_shipper import JournalShipper
from tunefleet.schemas.job_folder import JobFolder


class Backend:
    """Takes lines by number as a backend does: what it knows is passed over, a gap is refused."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def logs(self, _job_id: str, lines: list[str], offset: int) -> None:
        assert offset <= len(self.lines), "lines before them are missing"
        self.lines += [line.partition("] ")[2] for line in lines[len(self.lines) - offset :]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    monkeypatch.setattr(job_log, "BEGINNING_BYTES", 500)
    folder = JobFolder(tmp_path)
    folder.journal_dir.mkdir()
    folder.job_json.write_text(json.dumps({"attempt": 1, "log_base": 0}))
    return folder


def shipper_of(folder: JobFolder, backend: Backend) -> JournalShipper:
    record = SimpleNamespace(loss_is_of_tokens=True, started_at=0.0, order=0.0, muted=None, refused={})
    job: Any = SimpleNamespace(job_id="job-1", folder=folder, record=record, log_times=LogTimes(folder.log))
    return JournalShipper(folder, BackendSink(job, backend, lambda: None))  # type: ignore[arg-type]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("torn", ["", "a torn "])
@pytest.mark.parametrize("cut", [False, True])
def test_lines_keep_their_numbers_over_a_restart_and_a_cut(
    folder: JobFolder, restarted: bool, torn: str, cut: bool
) -> None:
    backend = Backend()
    first = [f"line {number:04d}" for number in range(200)]
    folder.log.write_text("".join(f"{line}\n" for line in first) + torn)
    shipper = shipper_of(folder, backend)
    assert shipper.flush(5)
    if cut:
        assert job_log.shorten(folder.log, 2000)
    for text in ("new\nnewer\n", "newest\n"):
        with folder.log.open("a") as log:
            log.write(text)
        shipper = shipper_of(folder, backend) if restarted else shipper
        assert shipper.flush(5)
    note = [line for line in backend.lines if "are dropped here" in line]
    assert len(note) == cut
    left = [line for line in backend.lines if line and line not in note]
    if cut and torn:
        assert left == [*first, *([] if restarted else [torn]), "new", "newer", "newest"]
    else:
        assert left == [*first, f"{torn}new", "newer", "newest"]
