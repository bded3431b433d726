"""`tunefleet run`: scripts that know nothing of Tunefleet, in an environment that does not have it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tunefleet.jobs import gpus
from tunefleet.jobs.control import ControlClient, JobSteering, find_endpoint, wait_for
from tunefleet.wire.journal import ANY_RECORD, MetricRecord

SCRIPT = """
import sys, time, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

class Slow(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        time.sleep(float(sys.argv[2]))

class TrainerControlCallback(TrainerCallback):
    def on_train_begin(self, *args, **kwargs):
        print("the script's own control begins")

    on_init_end = on_train_begin

rows = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(32)]
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    attention_dropout=0.1,
)
args = TrainingArguments(
    output_dir="out", max_steps=int(sys.argv[1]), logging_steps=2, save_steps=5, save_total_limit=2, report_to=[],
    use_cpu=True, per_device_train_batch_size=4, disable_tqdm=True,
)
callbacks = [Slow(), *([TrainerControlCallback()] if "own" in sys.argv else [])]
trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=rows, callbacks=callbacks)
if "broken" in sys.argv:
    trainer.train_dataset = None
trainer.train()
weights = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
print("weights", weights.hex())
"""

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


class Runs:
    """A folder to run scripts in."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.endpoints = home / "jobs"
        self.environment = {**os.environ, "TUNEFLEET_HOME": str(home), "OMP_NUM_THREADS": "1"}
        (folder / "train.py").write_text(SCRIPT)

    def begin(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from tunefleet.cli.main import main; main()", "run", *args]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *args: str) -> tuple[int, str, str]:
        with self.begin(*args) as process:
            out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def file(self, job_id: str, name: str) -> Any:
        return json.loads((self.folder / "tunefleet-runs" / job_id / name).read_text())

    def endpoint(self, job_id: str) -> Any:
        deadline = time.monotonic() + 100
        while (found := find_endpoint(self.endpoints, job_id)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found is not None
        return found

    def steps(self, job_id: str) -> list[int]:
        """The steps whose loss was recorded, over all launches."""
        found = []
        for file in (self.folder / "tunefleet-runs" / job_id / "journal").iterdir():
            records = [ANY_RECORD.validate_json(line) for line in file.read_text().splitlines()]
            metrics = [record for record in records if isinstance(record, MetricRecord) and record.window is not None]
            found += [step for record in metrics for step in range(record.window[0], record.window[1] + 1)]  # type: ignore[index]
        return sorted(found)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    return Runs(folder, home)


def weights(text: str) -> str:
    return text.partition("weights ")[2].strip()


@pytest.mark.slow
def test_a_script_is_paused_by_sigterm_and_goes_on_to_the_same_weights(runs: Runs, foreign_python: Path) -> None:
    python = str(foreign_python)
    reference = runs.folder / "straight"
    reference.mkdir()
    straight = subprocess.Popen(
        [python, "../train.py", "14", "0"], cwd=reference, env=runs.environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    process = runs.begin("--name", "one", "--", python, "train.py", "14", "0.15", "own")
    client = ControlClient(runs.endpoint("one"))
    deadline = time.monotonic() + 100
    while client.status()["global_step"] < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, "paused" in err, weights(out)) == (0, True, "")
    assert "the script's own control begins" not in out
    paused = runs.file("one", "status.json")
    assert (paused["state"], paused["intent"]) == ("paused", "pause")
    (runs.folder / "out" / f"checkpoint-{paused['step']}" / "manifest.json").stat()
    code, out, err = runs.run("--resume", "one")
    assert (code, weights(out)) == (0, weights(straight.communicate(timeout=100)[0])), err
    assert runs.file("one", "status.json")["state"] == "completed"
    assert runs.steps("one") == list(range(1, 15))
    assert runs.file("one", "job.json")["attempt"] == 2
    assert weights((runs.folder / "tunefleet-runs/one/train.log").read_text()) == weights(out)
    assert runs.run("--resume", "one")[0] == 5
    assert find_endpoint(runs.endpoints, "one") is None


@pytest.mark.slow
def test_a_killed_script_goes_on_and_a_broken_one_says_why(runs: Runs, foreign_python: Path) -> None:
    python = str(foreign_python)
    broken = runs.begin("--name", "two", "--", python, "train.py", "3", "0", "broken")
    process = runs.begin("--name", "one", "--no-http", "--", python, "train.py", "12", "0.1")
    runs.endpoint("one")
    deadline = time.monotonic() + 100
    while not (runs.folder / "out/checkpoint-5/manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(runs.file("one", "process.json")["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGKILL
    assert "tunefleet run --resume one" in err
    assert runs.file("one", "status.json")["state"] == "failed"
    assert runs.run("--resume", "one")[0] == 0
    trainings = runs.file("one", "trainings.json")["trainings"]
    assert [bool(item["checkpoint"]) for item in trainings] == [False, True]
    _, err = broken.communicate(timeout=100)
    assert broken.returncode == 1
    assert runs.file("two", "status.json")["error"].startswith("ValueError: Trainer: training requires a train_dataset")
    assert "ValueError" in err


@pytest.mark.slow
def test_ranks_of_torchrun_are_one_run(runs: Runs, foreign_python: Path) -> None:
    launcher = [str(foreign_python), "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    process = runs.begin("--name", "two", "--", *launcher, "train.py", "40", "0.1")
    runs.endpoint("two")
    steering = JobSteering.here(runs.endpoints, "two")
    reply = steering.send("pause")
    state = wait_for(lambda: steering.outcome(reply.command_id), 60)
    assert state.state == "durable"
    _, err = process.communicate(timeout=100)
    assert (process.returncode, runs.file("two", "status.json")["state"]) == (0, "paused"), err
    assert len(runs.file("two", "trainings.json")["trainings"]) == 1


def test_the_exit_code_is_the_scripts_and_it_is_said_that_nothing_trained(runs: Runs) -> None:
    code, out, err = runs.run("--name", "x", "--", sys.executable, "-I", "-c", "print('hello'); raise SystemExit(7)")
    assert (code, out) == (7, "hello\n")
    assert "Nothing in this command built a Trainer" in err
    assert (runs.folder / "tunefleet-runs/x/train.log").read_text() == "hello\n"
    # It never trained, so the name is free again; a command that is not there is a clear error.
    code, _, err = runs.run("--name", "x", "--", "no-such-command")
    assert (code, "no-such-command cannot be run" in err) == (8, True)
    code, out, _ = runs.run("--name", "x", "--json", "--", "sh", "-c", "kill -9 $$")
    assert (code, json.loads(out)["exit_code"], json.loads(out)["attached"]) == (137, 137, False)


def test_the_environments_own_sitecustomize_runs(runs: Runs, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['OWN'] = __file__\n")
    runs.environment["PYTHONPATH"] = str(own)
    code = "import os, sys, sitecustomize as own; print(os.environ['OWN'] == own.__file__, sys.path[1:2])"
    assert runs.run("--name", "x", "--", sys.executable, "-c", code)[1].startswith("True ")
    assert "attach" not in runs.run("--name", "y", "--", sys.executable, "-c", "import sys; print(sys.path)")[1]


def test_ctrl_c_is_the_scripts(runs: Runs) -> None:
    code = "import time\ntry:\n  print('ready', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('mine')"
    with runs.begin("--name", "x", "--", sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert (process.stdout.read(), process.wait(30)) == ("mine\n", 0)


def test_sigterm_ends_what_does_not_train(runs: Runs) -> None:
    with runs.begin(
        "--name", "x", "--", sys.executable, "-c", "print(1, flush=True)\nimport time; time.sleep(60)"
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_command_on_a_terminal_has_a_terminal(runs: Runs) -> None:
    import pty

    ours, theirs = pty.openpty()
    code = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty())"
    command = [sys.executable, "-c", "from tunefleet.cli.main import main; main()", "run", "--name", "x", "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", code], cwd=runs.folder, env=runs.environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    assert process.wait(60) == 0
    assert b"True True\r\n" in os.read(ours, 1 << 16)
    os.close(ours)
    assert (runs.folder / "tunefleet-runs/x/train.log").read_text() == "True True\n"


def test_a_gpu_that_a_job_holds_is_refused(tmp_path: Path) -> None:
    from tunefleet.errors import MachineError
    from tunefleet.jobs.foreground import ForegroundRun
    from tunefleet.wire.jobfolder import Job, JobFolder

    endpoints = tmp_path / "jobs"
    job = Job(
        job_id="x", task_id="x", attempt=1, launch="launch-1", kind="run", name="x", program="command",
        spec={"command": ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES > visible"], "cwd": str(tmp_path)},
        gpus=("GPU-1",), endpoint_dir=str(endpoints),
    )  # fmt: skip
    run = ForegroundRun(JobFolder(tmp_path / "x"), job, {"PATH": os.environ["PATH"]}, say=print)
    held = gpus.claim(gpus.ledger_dir(endpoints), ["GPU-1"], "task-1")
    with pytest.raises(MachineError, match="task-1"):
        run.run()
    for fd in held:
        os.close(fd)
    assert run.run().exit_code == 0
    assert (tmp_path / "visible").read_text() == "GPU-1\n"
    assert gpus.holder(gpus.ledger_dir(endpoints), "GPU-1") is None
