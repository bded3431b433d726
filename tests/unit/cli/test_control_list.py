"""`tunefleet control list` names the jobs that are paused, though they cannot be steered, and how each goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunefleet.cli.main import run


def left(folder: Path, state: str) -> None:
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    (folder / "status.json").write_text(json.dumps({"state": state, "at": 1.0, "pid": 1, "step": 7}))


def test_paused_jobs_are_named_with_the_way_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEFLEET_JOBS_DIR", str(tmp_path / "jobs"))
    left(tmp_path / "tunefleet-runs" / "mine", "paused")
    left(tmp_path / "tunefleet-runs" / "done", "completed")
    left(tmp_path / "jobs" / "own-script", "paused")
    left(tmp_path / "jobs" / "stopped", "stopped")
    assert run(["control", "list"]) == 0
    said = capsys.readouterr().out
    assert "Paused: mine. Resume: tunefleet run --resume mine" in said
    assert "Paused: own-script. Resume: run its script again" in said
    assert "done" not in said
    assert "stopped" not in said
    assert run(["control", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"jobs": [], "paused": ["own-script", "mine"]}
