"""`doctor`, `uninstall` and `preview`: what they see on this machine."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tunefleet import errors
from tunefleet.cli.main import run
from tunefleet.cli.models import data_commands
from tunefleet.cli.server import checks


@pytest.fixture(autouse=True)
def data(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("TUNEFLEET_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_damaged_database_is_found(data: Path) -> None:
    assert checks.data_folder().found.endswith("is created at the first start")
    data.mkdir()
    assert checks.data_folder().state == "good"
    with sqlite3.connect(data / "tunefleet.db") as connection:
        connection.execute("create table x (y)")
        connection.executemany("insert into x values (?)", [("z" * 1000,)] * 100)
    connection.close()
    assert checks.data_folder().found.endswith("database intact")
    content = bytearray((data / "tunefleet.db").read_bytes())
    content[4096:8192] = b"\xff" * 4096
    (data / "tunefleet.db").write_bytes(content)
    damaged = checks.data_folder()
    assert (damaged.state, "backup" in (damaged.mend or "")) == ("bad", True)


@pytest.mark.parametrize(
    ("smi", "torch", "state", "words"),
    [
        (None, "None 0", "good", "none; training runs on the CPU"),
        ("NVIDIA H200, 143771 MiB, 550.1", "12.8 1", "good", "torch uses 1 (runtime 12.8)"),
        ("NVIDIA H200, 143771 MiB, 550.1", " 0", "warning", "CPU build"),
        ("NVIDIA H200, 143771 MiB, 470.1", "12.8 0", "warning", "cannot use it"),
    ],
)
def test_gpus(smi: str | None, torch: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_run", lambda command: smi if command[0] == "nvidia-smi" else torch)
    monkeypatch.setattr(checks, "find_spec", lambda name: object())
    found = checks.gpu()
    assert (found.state, words in found.found) == (state, True)


def test_environments_that_work_for_nobody_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    real, states = checks.at, dict.fromkeys(checks.FAMILIES, "missing")
    monkeypatch.setattr(checks, "at", lambda name: replace(real(name), state=states[name]))
    assert checks.environments().found.startswith("none; some")
    states["ppo"] = "ready"
    assert (checks.environments().state, checks.environments().found) == ("good", "ready: ppo")
    states["vllm"] = "stale"
    found = checks.environments()
    assert (found.state, found.found) == ("warning", "ready: ppo; vllm is stale")
    assert found.mend == "tunefleet env create vllm --again"


def test_missing_libraries_and_little_room_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert errors.install_command("train") in str(checks.training_libraries().mend)
    assert checks.gpu().state == "good"
    monkeypatch.setattr(checks, "_LEAST_DISK", 1 << 60)
    monkeypatch.setattr(checks, "_LEAST_MEMORY", 1 << 60)
    assert (checks.disk().state, checks.memory().state) == ("warning", "warning")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert checks.hub().found.startswith("on")


def test_uninstall_never_takes_data_by_itself(data: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    (data / "tunefleet.db").write_bytes(b"x" * 2048)
    (home / "client.json").write_text("{}")
    (home / "jobs" / "task-1").mkdir(parents=True)
    assert run(["uninstall", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keep"] == [str(data)]
    assert run(["uninstall"]) == 3
    assert (home / "client.json").exists()
    assert run(["uninstall", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "kept; remove with --data" in said
    assert not home.exists()
    assert (data / "tunefleet.db").exists()
    lock = FileLock(data / "lock")
    with lock:
        assert run(["uninstall", "--data", "--yes"]) == 5
    assert data.exists()
    assert run(["uninstall", "--data", "--yes", "--json"]) == 0
    assert not data.exists()
    assert run(["uninstall", "--yes"]) == 0


SHOWN: dict[str, Any] = {
    "model": "builtin:gsm8k-llama-2m",
    "dataset": "rows.jsonl",
    "shape": "pair",
    "columns": ["question", "answer"],
    "rows": [
        {
            "tokens": 9,
            "trained_tokens": 3,
            "pieces": [
                {"text": "How many? ", "trained": False, "cut": False, "tokens": 3},
                {"text": "Two", "trained": True, "cut": False, "tokens": 3},
                {"text": " of them", "trained": True, "cut": True, "tokens": 3},
            ],
        }
    ],
    "total_rows": 20_000,
    "held_out_rows": 10,
    "measured_rows": 10_000,
    "max_seq_length": 100,
    "lengths": {"shortest": 3, "median": 50, "p95": 110, "longest": 120},
    "histogram": {"edges": [0, 50, 100, 150], "counts": [5, 10, 1]},
    "truncated_share": 0.1,
    "nothing_to_learn_share": 0.05,
    "notes": ["Columns that are not used: 'id' (row 1)."],
    "trained_share": 0.4,
}
DOCUMENT = """apiVersion: tunefleet/v1
kind: Training
metadata: {name: x}
spec:
  taskType: sft
  model: {source: {identifier: builtin:gsm8k-llama-2m}}
  data: {path: builtin:gsm8k}
"""


def _answer(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "", code: int = 0) -> None:
    done = subprocess.CompletedProcess([], code, stdout, stderr)
    monkeypatch.setattr(data_commands.subprocess, "run", lambda *args, **kwargs: done)


def test_preview_draws_what_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(DOCUMENT)
    _answer(monkeypatch, "a warning of a library\n" + json.dumps(SHOWN))
    assert run(["preview", "x.yaml"]) == 0
    said = capsys.readouterr().out
    assert "How many? ⟦Two⟧⟨cut:  of them⟩" in said
    assert "10.0% of the rows are longer than 100 tokens" in said
    assert "5.0% of the rows have no trained tokens" in said
    assert "████" in said
    assert run(["preview", "x.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SHOWN


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "words"),
    [
        ('{"error": "There is no column q.", "hint": "It has: a."}', "", 3, "There is no column q."),
        ("", "ModuleNotFoundError: No module named 'torch'", 8, errors.install_command("train")),
        ("", "Segmentation fault", 8, "The preview failed: Segmentation fault"),
    ],
)
def test_a_preview_that_fails_says_why(
    stdout: str,
    stderr: str,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "x.yaml").write_text(DOCUMENT)
    _answer(monkeypatch, stdout, stderr, code=1)
    assert run(["preview", "x.yaml"]) == code
    assert words in capsys.readouterr().err


def test_a_preview_of_data_on_the_server_needs_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(DOCUMENT.replace("path: builtin:gsm8k", "artifact: rows"))
    monkeypatch.setattr(
        data_commands.subprocess, "run", lambda *args, **kwargs: pytest.fail("there is nothing to preview")
    )
    assert run(["preview", "x.yaml"]) == 7
    told = capsys.readouterr().err
    assert "The data 'rows' is on the server, and the preview must download it. No Tunefleet server configured." in told
    assert "tunefleet up" in told
    assert "data.path" in told


def test_a_worker_without_a_key_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The handler would outlive this test.
    monkeypatch.setattr("tunefleet.cli.workers.start_worker.log_to_stderr", lambda level, form: None)
    assert run(["worker", "--server", "http://127.0.0.1:9", "--results-dir", str(tmp_path / "results")]) == 6
    told = capsys.readouterr().err
    assert "tunefleet join URL TOKEN" in told
    assert "tunefleet workers invite" in told
    assert "TUNEFLEET_WORKER_KEY" in told
    assert "--key" not in told
