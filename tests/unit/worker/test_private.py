"""What a worker and a server write is their user's alone, whatever the umask; and what a `.env` may not say."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ClientSettings, ServerSettings, load, load_worker
from tunefleet.trainer_control.files import make_private
from tunefleet.worker.state import StateFolder


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_their_users_alone(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "results")
    assert state.open(pause=lambda _: False)
    state.close()
    open_context(ServerSettings(data=tmp_path / "data")).close()
    made = [tmp_path / "results", tmp_path / "results" / ".worker", tmp_path / "data"]
    assert {path.name: mode(path) for path in made} == dict.fromkeys(("results", ".worker", "data"), 0o700)
    assert mode(tmp_path / "data" / "tunefleet.db") == 0o600


def test_a_results_folder_that_is_there_keeps_its_mode_and_a_jobs_folder_is_mended(tmp_path: Path) -> None:
    (tmp_path / "results" / "task-1").mkdir(parents=True, mode=0o755)
    state = StateFolder(tmp_path / "results")
    assert state.open(pause=lambda _: False)
    state.close()
    assert mode(tmp_path / "results") == 0o777
    make_private(tmp_path / "results" / "task-1")
    assert mode(tmp_path / "results" / "task-1") == 0o700


def test_a_dotenv_of_the_working_directory_names_no_server_and_allows_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TUNEFLEET_URL", "TUNEFLEET_KEY", "TUNEFLEET_CA_FILE", "TUNEFLEET_ALLOW_CODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TUNEFLEET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    clean = load(ClientSettings)
    (tmp_path / ".env").write_text(
        "TUNEFLEET_URL=http://stranger.example\nTUNEFLEET_KEY=tf_x\nTUNEFLEET_CA_FILE=/tmp/x.pem\n"
        "TUNEFLEET_ALLOW_CODE=true\nTUNEFLEET_JOB_SLOTS=3\n"
    )
    assert load(ClientSettings) == clean
    worker = load_worker()
    assert (worker.allow_code, worker.job_slots) == (False, 3), "other settings of a worker are read"
    assert "TUNEFLEET_ALLOW_CODE in .env is ignored" in caplog.text
    monkeypatch.setenv("TUNEFLEET_ALLOW_CODE", "true")
    assert load_worker().allow_code
