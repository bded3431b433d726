"""`tunefleet control` against a real control port, command files and what dead jobs leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.cli import main
from tunefleet.cli.control import control_commands as commands
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.trainer_control.control.command_queue import SAVING, CommandQueue
from tunefleet.trainer_control.control.control_server import ControlServer
from tunefleet.trainer_control.control.discovery import EndpointFolder
from tunefleet.trainer_control.control.file_channel import FileChannel
from tunefleet.trainer_control.files import write_json
from tunefleet.trainer_control.journal.status import StatusFile


class Trainer:
    """Stands in for a training: a real port, a real board, and a thread that acts at the ends of its steps."""

    def __init__(self, home: Path, job_id: str, *, http: bool = True, acts: bool = True) -> None:
        self.endpoints = home / "jobs"
        self.folder = home / "folders" / job_id
        self.folder.mkdir(parents=True)
        self.board = CommandQueue(self.folder)
        self.status = StatusFile(self.folder)
        self.status.write(state="running", phase="training", step=7, max_steps=20, values={"loss": 1.5})
        self.server = ControlServer(job_id, self.board, self.status, self.endpoints, job_folder=self.folder)
        self.files: FileChannel | None = None
        if http:
            self.server.start()
        else:
            folder = EndpointFolder(self.endpoints, job_id, self.folder)
            folder.publish(host="localhost", port=0, token=None)
            self.files = FileChannel(folder.path, self.board)
            self.files.start()
        self.acted: list[tuple[str, dict[str, Any]]] = []
        self._stop = threading.Event()
        if acts:
            threading.Thread(target=self._steps, daemon=True).start()

    def _steps(self) -> None:
        step = 7
        while not self._stop.wait(0.02):
            step += 1
            for item in self.board.take():
                self.acted.append((item.command, item.data))
                self.board.applied(item.command_id, step, saving=item.command in SAVING)
                if item.command == "evaluate":
                    self.board.failed(item.command_id, "there is no evaluation")
            for command_id in self.board.take_saving():
                self.board.durable(command_id, f"checkpoint-{step}")

    def close(self) -> None:
        self._stop.set()
        self.server.stop()
        if self.files is not None:
            self.files.stop()


Start = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def no_process_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is a thread of this process, which does not end with it."""
    monkeypatch.setattr(commands, "_EXIT_TIMEOUT_S", 0.0)


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    made: list[Trainer] = []

    def begin(job_id: str, **options: Any) -> Trainer:
        made.append(Trainer(home, job_id, **options))
        return made[-1]

    yield begin
    for trainer in made:
        trainer.close()


@pytest.fixture
def control(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*args: str) -> tuple[int, str]:
        code = main.run(["control", *args])
        return code, capsys.readouterr().out

    return run


Control = Callable[..., tuple[int, str]]


def dead(home: Path, name: str, **fields: Any) -> Path:
    """Leave what a killed trainer leaves."""
    folder = home / "jobs" / name
    EndpointFolder(home / "jobs", name, home / "elsewhere").publish(host="localhost", port=1, token="x")
    file = folder / "endpoint.json"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    write_json(file, {**json.loads(file.read_text()), "pid": child.pid, "process_started_at": 1.0, **fields})
    return folder


@pytest.mark.parametrize(
    ("verb", "command"),
    [("save", "save_checkpoint"), ("stop", "graceful_stop"), ("save-stop", "save_and_stop"), ("pause", "pause")],
)
@pytest.mark.parametrize("http", [True, False], ids=["port", "files"])
def test_a_verb_waits_for_its_outcome(start: Start, control: Control, verb: str, command: str, http: bool) -> None:
    trainer = start("run-1", http=http)
    code, said = control(verb, "run", "--json")
    outcome = json.loads(said)
    assert code == 0
    assert (outcome["command"], outcome["state"]) == (command, "durable" if command in SAVING else "applied")
    assert trainer.acted == [(command, {})]


def test_what_fails_is_told_by_sentence_and_exit_code(start: Start, control: Control) -> None:
    start("run-1")
    code, said = control("evaluate", "run-1")
    assert (code, said) == (ExitCode.FAILED, "✗ evaluate of run-1 failed: there is no evaluation\n")


def test_a_wait_has_an_end_and_need_not_be(start: Start, control: Control) -> None:
    trainer = start("run-1", acts=False)
    assert control("save", "run-1", "--timeout", "0.2")[0] == ExitCode.TIMED_OUT
    assert control("stop", "run-1", "--no-wait")[0] == 0
    assert trainer.board.wants("graceful_stop")


def test_set_hands_over_numbers(start: Start, control: Control) -> None:
    trainer = start("run-1")
    assert control("set", "run-1", "learning_rate=1e-5", "save_steps=20")[0] == 0
    assert trainer.acted == [("set", {"learning_rate": 1e-5, "save_steps": 20})]
    assert control("set", "run-1", "batch_size=3")[0] == ExitCode.INVALID
    assert control("set", "run-1", "learning_rate")[0] == ExitCode.INVALID


def test_abort_asks_before(start: Start, control: Control) -> None:
    trainer = start("run-1")
    assert control("abort", "run-1")[0] == ExitCode.INVALID  # nobody can be asked here
    assert trainer.acted == []
    assert control("abort", "run-1", "--force")[0] == 0
    assert trainer.acted == [("abort", {})]


def test_status_shows_every_field_and_the_list_the_columns(start: Start, control: Control, home: Path) -> None:
    start("run-1")
    dead(home, "old")
    code, said = control("status", "run-1")
    assert code == 0
    assert said.startswith("Status of job run-1\n")
    assert "  loss: 1.5\n" in said
    assert "  status: running\n" in said
    code, said = control("list")
    lines = said.splitlines()
    assert lines[0] == "Training jobs:"
    assert lines[1].split("  ")[0] == "Status Job ID"
    assert set(lines[2]) == {"-"}
    assert len(lines[2]) >= 75
    assert [line.split()[:2] for line in lines[3:5]] == [["✓", "run-1"], ["✗", "old"]]
    assert "1 dead job" in said
    assert "tunefleet control cleanup" in said


def test_a_start_that_fits_several_is_refused_and_one_that_fits_a_live_one_is_it(
    start: Start, control: Control, home: Path
) -> None:
    start("run-1")
    dead(home, "run-2")
    assert control("status", "run")[0] == 0
    start("run-3")
    assert control("status", "run")[0] == ExitCode.INVALID
    assert control("status", "nothing")[0] == ExitCode.NOT_FOUND


def test_after_the_end_the_status_says_how_it_ended(start: Start, control: Control, home: Path) -> None:
    trainer = start("run-1")
    trainer.status.write(state="failed", step=9, error="RuntimeError: it broke")
    trainer.close()
    left = home / "jobs" / "run-1"
    left.mkdir(exist_ok=True)
    write_json(left / "status.json", json.loads((trainer.folder / "status.json").read_text()))
    code, said = control("status", "run-1")
    assert code == ExitCode.FAILED
    assert said.endswith("Job run-1 failed at step 9 of 20: RuntimeError: it broke\n")
    assert control("save", "run-1")[0] == ExitCode.CONFLICT
    assert control("watch", "run-1")[0] == ExitCode.FAILED


def test_a_command_that_the_process_did_not_live_to_do_has_failed(start: Start, control: Control, home: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    EndpointFolder(home / "jobs", "run-1").publish(host="localhost", port=0, token=None)
    file = home / "jobs/run-1/endpoint.json"
    from tunefleet.trainer_control import process_identity

    started = process_identity.process_started_at(child.pid)
    write_json(file, {**json.loads(file.read_text()), "pid": child.pid, "process_started_at": started})
    threading.Timer(0.5, child.kill).start()
    threading.Timer(0.6, child.wait).start()
    code, said = control("save", "run-1", "--timeout", "30")
    assert code == ExitCode.FAILED
    assert "the process ended before executing it" in said


def test_a_job_elsewhere_is_steered_by_its_port(start: Start, control: Control) -> None:
    trainer = start("run-1")
    there = f"localhost:{trainer.server.port}"
    token = trainer.server.token or ""
    code, said = control("list", "--remote", there, "--token", token, "--json")
    assert code == 0
    rows = json.loads(said)["jobs"]
    assert [(row["job_id"], row["live"]) for row in rows] == [("run-1", True)], "once, though it is on this machine"
    assert control("save", "run-1", "--remote", there, "--token", token)[0] == 0
    assert control("save", "run", "--remote", there)[0] == 0
    assert control("status", "other", "--remote", there)[0] == ExitCode.NOT_FOUND
    assert control("status", "run-1", "--remote", there, "--token", "wrong")[0] == ExitCode.DENIED
    assert control("status", "run-1", "--token", token)[0] == ExitCode.INVALID
    assert control("status", "run-1", "--remote", "nowhere")[0] == ExitCode.INVALID
    assert control("status", "run-1", "--remote", "localhost:1")[0] == ExitCode.UNREACHABLE


def test_liveness_elsewhere_is_judged_there(
    start: Start, control: Control, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start("run-1")
    dead(home, "old")
    dead(home, "other", hostname="another-machine")
    monkeypatch.setenv("TUNEFLEET_HOME", str(tmp_path / "here"))
    _, said = control("list", "--remote", f"localhost:{trainer.server.port}", "--json")
    rows = {row["job_id"]: row["live"] for row in json.loads(said)["jobs"] if row["remote"]}
    assert rows == {"run-1": True, "old": False, "other": None}


def test_the_curl_line_works_as_it_is(start: Start, control: Control) -> None:
    trainer = start("run-1")
    _, line = control("curl", "run-1", "set", "save_steps=5")
    answer = subprocess.run(["bash", "-c", f"{line.strip()} --silent"], capture_output=True, check=True, text=True)
    assert json.loads(answer.stdout)["status"] == "acknowledged"
    deadline = time.monotonic() + 10
    while not trainer.acted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert trainer.acted == [("set", {"save_steps": 5})]
    assert control("curl", "run-1", "fly")[0] == ExitCode.INVALID
    _, line = control("curl", "run-1", "save", "--remote", "box:8900")
    assert "http://box:8900/jobs/run-1/control" in line
    assert "Authorization: Bearer TOKEN" in line


class TestCleanup:
    def test_only_what_is_surely_dead_goes(self, start: Start, control: Control, home: Path) -> None:
        start("alive")
        gone = dead(home, "gone")
        recycled = dead(home, "recycled", pid=os.getpid())
        rebooted = dead(home, "rebooted", boot_id="another", pid=os.getpid())
        foreign = dead(home, "foreign", hostname="another-machine")
        code, said = control("cleanup", "--force", "--json")
        assert code == 0
        assert sorted(json.loads(said)["removed"]) == ["gone", "rebooted", "recycled"]
        assert not gone.exists()
        assert not recycled.exists()
        assert not rebooted.exists()
        assert foreign.exists()
        assert (home / "jobs" / "alive" / "endpoint.json").exists()

    def test_what_ended_properly_goes_with_its_status(self, control: Control, home: Path) -> None:
        for name, state in (("ended", "completed"), ("lives", "running")):
            folder = home / "jobs" / name
            folder.mkdir(parents=True)
            StatusFile(folder).write(state=state)
            (folder / "commands.json").write_text("{}")
        code, said = control("cleanup", "--force", "--json")
        assert code == 0
        assert json.loads(said) == {"removed": ["ended"], "empty": 0, "kept": []}
        # One that is not final may be of a job that is just being made.
        assert [path.name for path in (home / "jobs").iterdir()] == ["lives"]

    def test_it_asks_and_says_what_it_would_remove(self, control: Control, home: Path) -> None:
        folder = dead(home, "gone")
        code, said = control("cleanup")
        assert code == ExitCode.INVALID
        assert "gone  pid " in said
        assert folder.exists()

    def test_it_never_leaves_the_endpoint_folder(self, control: Control, home: Path) -> None:
        valuable = home / "valuable"
        valuable.mkdir()
        (valuable / "endpoint.json").write_text("{}")
        folder = dead(home, "evil", job_id="../../valuable")
        (home / "jobs" / "link").symlink_to(valuable)
        linked = dead(home, "linked")
        (linked / "control").symlink_to(valuable)
        (linked / "job").unlink()
        (linked / "job").symlink_to(valuable)
        code, said = control("cleanup", "--force", "--json")
        assert code == 0
        assert json.loads(said)["removed"] == ["linked"]
        assert not linked.exists()
        assert (valuable / "endpoint.json").exists()
        assert folder.exists()

    def test_files_of_others_stay_and_empty_folders_go(self, control: Control, home: Path) -> None:
        mine = dead(home, "with-notes")
        (mine / "notes.txt").write_text("mine")
        empty = home / "jobs" / "empty"
        empty.mkdir()
        os.utime(empty, (1, 1))
        code, said = control("cleanup", "--force", "--json")
        assert code == 0
        assert json.loads(said) == {"removed": [], "empty": 1, "kept": [str(mine)]}
        assert (mine / "notes.txt").read_text() == "mine"
        assert not empty.exists()

    @pytest.mark.usefixtures("home")
    def test_without_the_dead_it_says_so(self, control: Control) -> None:
        assert control("cleanup") == (0, "No dead jobs.\n")


def test_ids_are_completed(start: Start, home: Path) -> None:
    from tunefleet.cli.control.job_lookup import _complete

    start("run-1")
    dead(home, "run-2")
    assert [word for word, _ in _complete("r")] == ["run-1"]


def test_watch_tells_lines_until_the_end(start: Start, control: Control) -> None:
    trainer = start("run-1")

    def end() -> None:
        trainer.status.write(state="completed", step=20)
        trainer.close()

    threading.Timer(0.6, end).start()
    code, said = control("watch", "run-1", "--interval", "0.1")
    assert code == 0
    assert "running training 7/20  loss 1.5" in said
    assert said.splitlines()[-1].startswith("Job run-1 ") or "has ended" in said


@pytest.mark.parametrize(
    ("left", "status", "code"),
    [
        ({"state": "running"}, "killed", ExitCode.FAILED),
        ({"state": "killed", "error": "The command was ended by SIGKILL."}, "killed", ExitCode.FAILED),
        ({"state": "failed", "error": "ValueError: no"}, "failed", ExitCode.FAILED),
        ({"state": "stopped"}, "stopped", ExitCode.OK),
        ({"state": "completed"}, "completed", ExitCode.OK),
    ],
)
def test_how_a_job_that_is_gone_has_ended(
    tmp_path: Path, home: Path, control: Control, left: dict[str, Any], status: str, code: ExitCode
) -> None:
    folder = dead(home, "gone")
    write_json(folder / "status.json", {"at": 1.0, "pid": 1, "step": 3, "max_steps": 9, "eta_s": 5.0, **left})
    found, said = control("status", "gone", "--json")
    shown = json.loads(said)
    assert (found, shown["status"], shown["eta_s"], shown["live"]) == (code, status, None, False)
