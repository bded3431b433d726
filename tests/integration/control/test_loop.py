"""`tunefleet.control` in loops without callbacks: plain Python, plain PyTorch, Accelerate; one process and two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tunefleet
from tests.libraries import required
from tunefleet.runtime.control import ControlClient, JobController, find_endpoint
from tunefleet.schemas.control import CommandState
from tunefleet.schemas.job_folder import JobStatus
from tunefleet.trainer_control.checkpoints.manifest import invalid_reason
from tunefleet.trainer_control.loop import Control


@pytest.fixture
def jobs(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return home / "jobs"


def ask(
    jobs: Path, command: str, data: dict[str, Any] | None = None, job_id: str = "loop"
) -> Callable[[], CommandState]:
    """Send a command as another process would; return what asks for its outcome."""
    steering = JobController.here(jobs, job_id)
    reply = steering.send(command, data)
    return lambda: steering.outcome(reply.command_id)


def save(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "weights").write_text("1 2 3")
    return path


def status(folder: str = "tunefleet-runs/loop") -> JobStatus:
    return JobStatus.model_validate_json(Path(folder, "status.json").read_bytes())


def test_each_command_comes_as_a_flag_at_the_end_of_a_step(jobs: Path) -> None:
    with tunefleet.control("loop", max_steps=10) as c:
        assert not c.step(1, {"loss": 2.0})
        saved = ask(jobs, "save_checkpoint")
        asked = c.step(2)
        assert (asked.save, asked.stop, asked.evaluate) == (True, False, False)
        assert saved().state == "applied"
        c.saved(save(Path("out/checkpoint-2")))
        assert (saved().state, saved().checkpoint) == ("durable", "checkpoint-2")
        ask(jobs, "evaluate")
        assert c.step(3).evaluate
        ask(jobs, "set", {"learning_rate": 1e-4})
        assert dict(c.step(4).values) == {"learning_rate": 1e-4}
        ask(jobs, "graceful_stop")
        assert c.step(5, {"loss": 1.0}).stop
    assert (status().state, status().step, status().values["loss"]) == ("stopped", 5, 1.0)
    assert invalid_reason(Path("out/checkpoint-2")) is None
    assert find_endpoint(jobs, "loop") is None


def test_every_rank_knows_what_was_set_before(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tunefleet.control("loop") as c:
        ask(jobs, "set", {"learning_rate": 1e-4})
        c.step(1)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with tunefleet.control("loop") as c:
        assert c.values == {"learning_rate": 1e-4}, "ranks with different rates would part"


def test_a_pause_ends_the_process_when_its_checkpoint_is_durable_and_the_next_one_goes_on(jobs: Path) -> None:
    def train() -> int:
        with tunefleet.control("loop") as c:
            start = c.step_reached + 1
            if start == 1:
                ask(jobs, "set", {"save_steps": 3})
                ask(jobs, "pause")
            for step in range(start, 6):
                asked = c.step(step)
                if asked.save:
                    c.saved(save(Path(f"out/checkpoint-{step}")))
                if asked.stop:
                    break
            assert dict(c.values) == {"save_steps": 3}
        return start

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 0
    assert (status().state, status().intent, status().step) == ("paused", "pause", 1)
    assert train() == 2
    assert status().state == "completed"
    lines = [json.loads(file.read_text().splitlines()[0]) for file in Path("tunefleet-runs/loop/journal").iterdir()]
    assert sorted(line["from_step"] for line in lines) == [0, 1]


def test_a_broken_checkpoint_is_not_gone_on_from(jobs: Path) -> None:
    with tunefleet.control("loop") as c:
        for step in (1, 2):
            c.step(step)
            c.saved(save(Path(f"out/checkpoint-{step}")))
    Path("out/checkpoint-2/weights").write_text("1 2 4")
    with tunefleet.control("loop") as c:
        assert c.step_reached == 1


def test_an_abort_ends_the_process_at_the_step(jobs: Path) -> None:
    with pytest.raises(SystemExit), tunefleet.control("loop") as c:  # noqa: PT012
        ask(jobs, "abort")
        c.step(1)
    assert status().state == "aborted"


def test_what_the_loop_does_not_do_has_failed(jobs: Path) -> None:
    with tunefleet.control("loop") as c:
        outcome = ask(jobs, "save_checkpoint")
        c.step(1)
    assert outcome().state == "failed"
    assert "without calling saved()" in str(outcome().message)


def test_an_exception_is_the_last_word(jobs: Path) -> None:
    with pytest.raises(ValueError, match="odd"), tunefleet.control("loop") as c:  # noqa: PT012
        c.step(1)
        raise ValueError("odd")
    assert (status().state, status().error) == ("failed", "ValueError: odd")


def test_a_save_that_fails_fails_its_pause_and_the_loop_goes_on(jobs: Path) -> None:
    with tunefleet.control("loop") as c:
        outcome = ask(jobs, "pause")
        assert c.step(1).save
        with pytest.raises(OSError):
            c.saved("out/never-written")
        assert outcome().state == "failed"
        assert not c.step(2)


def test_two_of_one_name_are_refused(jobs: Path) -> None:
    with tunefleet.control("loop") as c:
        c.step(1)
        with pytest.raises(RuntimeError, match="is already running"):
            Control("loop", Path("elsewhere").resolve(), 0, http=True).__enter__()


def test_without_a_port_commands_are_files(jobs: Path) -> None:
    with tunefleet.control("loop", http=False) as c:
        outcome = ask(jobs, "graceful_stop")
        step, deadline = 0, time.monotonic() + 30
        while not c.step(step := step + 1).stop and time.monotonic() < deadline:
            time.sleep(0.02)
        waiting = threading.Event()
        while outcome().state != "applied" and time.monotonic() < deadline:
            waiting.wait(0.05)
        assert outcome().state == "applied"


SCRIPT = """
import sys, time, torch, tunefleet
from pathlib import Path
{setup}
def train(job_id, pause_s):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    {prepare}
    with tunefleet.control(job_id, max_steps=30) as c:
        if c.resume:
            state = torch.load(c.resume.path / "state.pt")
            inner.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for step in range(c.step_reached + 1, 31):
            torch.manual_seed(step)
            x = torch.randn(8, 4)
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            {backward}
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause_s)
            asked = c.step(step, {{"loss": loss.detach()}})
            if asked.save:
                folder = Path(f"out/checkpoint-{{step}}")
                folder.mkdir(parents=True, exist_ok=True)
                if {main}:
                    state = {{"model": inner.state_dict(), "optimizer": optimizer.state_dict()}}
                    torch.save(state, folder / "state.pt")
                c.saved(folder)
            if asked.stop:
                break
    if {main}:
        print(job_id, sum(float(p.detach().double().sum()) for p in inner.parameters()).hex(), flush=True)
for job_id, pause_s in zip(sys.argv[1::2], sys.argv[2::2]):
    train(job_id, float(pause_s))
"""
PLAIN = {"setup": "", "prepare": "inner = model", "backward": "loss.backward()", "main": "True"}
ACCELERATE = {
    "setup": "from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)",
    "prepare": "model, optimizer = accelerator.prepare(model, optimizer); inner = accelerator.unwrap_model(model)",
    "backward": "accelerator.backward(loss)",
    "main": "accelerator.is_main_process",
}


@pytest.mark.torch
@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "ranks"), [pytest.param("plain", 1, marks=pytest.mark.story), ("accelerate", 2)])
def test_a_paused_loop_goes_on_to_the_same_weights(jobs: Path, tmp_path: Path, kind: str, ranks: int) -> None:
    required("torch", "accelerate")
    (tmp_path / "train.py").write_text(SCRIPT.format(**(PLAIN if kind == "plain" else ACCELERATE)))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []

    def start(*trainings: str) -> subprocess.Popen[str]:
        command = [sys.executable, *launcher, "train.py", *trainings]
        environment = {**os.environ, "TUNEFLEET_JOBS_DIR": str(jobs)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    # One that is not paused comes before, in the same processes: most of the time goes into their imports.
    process = start("straight", "0", "loop", "0.1")
    deadline = time.monotonic() + 100
    while (endpoint := find_endpoint(jobs, "loop")) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert endpoint is not None
    client = ControlClient(endpoint)
    while client.status()["global_step"] < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    client.send("pause")
    name, straight = process.communicate(timeout=100)[0].split()
    assert (process.returncode, name) == (0, "straight")
    assert start("loop", "0").communicate(timeout=100)[0].split() == ["loop", straight]
    assert (status().state, status("tunefleet-runs/straight").state) == ("completed", "completed")


TERMINATED = """
import pathlib, time, tunefleet
with tunefleet.control("loop") as c:
    for step in range(1, 600):
        if c.step(step).save:
            folder = pathlib.Path(f"out/checkpoint-{step}")
            folder.mkdir(parents=True)
            (folder / "weights").write_text("1 2 3")
            c.saved(folder)
        time.sleep(0.05)
"""


def test_a_sigterm_saves_at_the_end_of_a_step_and_ends_as_paused(jobs: Path, home: Path) -> None:
    environment = {**os.environ, "TUNEFLEET_HOME": str(home)}
    with subprocess.Popen([sys.executable, "-c", TERMINATED], env=environment) as process:
        deadline = time.monotonic() + 60
        while find_endpoint(jobs, "loop") is None:
            assert time.monotonic() < deadline, "it does not begin"
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 0
    assert (status().state, status().intent) == ("paused", "preempt")
    assert invalid_reason(Path(f"out/checkpoint-{status().step}")) is None
