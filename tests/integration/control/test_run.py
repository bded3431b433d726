"""`tunefleet run`: scripts that know nothing of Tunefleet, in an environment that does not have it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime.control import JobController, find_endpoint, wait_for
from tunefleet.runtime.gpu import gpu_locks as gpus
from tunefleet.schemas.journal import ANY_RECORD, MetricRecord

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
    output_dir=sys.argv[3], max_steps=int(sys.argv[1]), logging_steps=2, save_steps=5, save_total_limit=2, report_to=[],
    use_cpu=True, per_device_train_batch_size=4, disable_tqdm=True,
)
callbacks = [Slow(), *([TrainerControlCallback()] if "own" in sys.argv else [])]
trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=rows, callbacks=callbacks)
trainer.train()
weights = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
print("weights", weights.hex())
if "broken" in sys.argv:
    trainer.train_dataset = None
    trainer.train()
"""

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300)]


class Runs:
    """A folder to run scripts in."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.endpoints = home / "jobs"
        self.environment = {**os.environ, "TUNEFLEET_HOME": str(home), "OMP_NUM_THREADS": "1"}
        (folder / "train.py").write_text(SCRIPT)

    def begin(self, *args: str, group: bool = False) -> subprocess.Popen[str]:
        """Start a run; with `group` as a shell, `timeout`, systemd or Slurm does, in a process group of its own."""
        command = [sys.executable, "-c", "from tunefleet.cli.main import main; main()", "run", *args]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=group,
        )  # fmt: skip

    def run(self, *args: str) -> tuple[int, str, str]:
        with self.begin(*args) as process:
            out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def control(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from tunefleet.cli.main import main; main()", "control", *args]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def file(self, job_id: str, name: str) -> Any:
        return json.loads((self.folder / "tunefleet-runs" / job_id / name).read_text())

    def endpoint(self, job_id: str) -> None:
        """Wait until a job can be found."""
        self.until(lambda: find_endpoint(self.endpoints, job_id))

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 100
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.05)

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


def test_a_script_is_killed_and_paused_and_goes_on_to_the_same_weights(runs: Runs, foreign_python: Path) -> None:
    python = str(foreign_python)
    straight = runs.begin("--name", "straight", "--", python, "train.py", "20", "0", "straight", "broken")
    process = runs.begin("--name", "one", "--no-http", "--", python, "train.py", "20", "0.15", "out", "own")
    runs.endpoint("one")
    runs.until(lambda: (runs.folder / "out/checkpoint-5/manifest.json").exists())
    os.kill(runs.file("one", "process.json")["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGKILL
    assert "tunefleet run --resume one" in err
    assert "the script's own control begins" not in out
    assert runs.file("one", "status.json")["state"] == "killed"
    told = runs.control("status", "one", "--json")
    assert (told.returncode, json.loads(told.stdout)["status"], json.loads(told.stdout)["eta_s"]) == (1, "killed", None)
    paused(runs)
    code, out, err = runs.run("--resume", "one")
    reference, why = straight.communicate(timeout=100)
    assert (code, weights(out)) == (0, weights(reference)), err
    assert runs.file("one", "status.json")["state"] == "completed"
    assert runs.steps("one") == list(range(1, 21))
    assert runs.file("one", "job.json")["attempt"] == 3
    trainings = runs.file("one", "trainings.json")["trainings"]
    assert [bool(item["checkpoint"]) for item in trainings] == [False, True, True]
    assert weights((runs.folder / "tunefleet-runs/one/train.log").read_text()) == weights(out)
    assert runs.run("--resume", "one")[0] == 5
    assert find_endpoint(runs.endpoints, "one") is None
    # The one that was trained straight on broke afterwards.
    said = "ValueError: Trainer: training requires a train_dataset"
    assert (straight.returncode, "ValueError" in why) == (1, True)
    assert runs.file("straight", "status.json")["error"].startswith(said)


def running_at(runs: Runs) -> int:
    """The step that the training is seen to have come to; 0 while there is none."""
    try:
        status = runs.file("one", "status.json")
    except FileNotFoundError:
        return 0
    return int(status.get("step") or 0) if status["state"] == "running" else 0


def paused(runs: Runs) -> None:
    """Go on after the kill, until a SIGTERM pauses."""
    process = runs.begin("--resume", "one")
    runs.until(lambda: running_at(runs) >= 8)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, "paused" in err, weights(out)) == (0, True, "")
    status = runs.file("one", "status.json")
    assert (status["state"], status["intent"]) == ("paused", "pause")
    (runs.folder / "out" / f"checkpoint-{status['step']}" / "manifest.json").stat()


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.story), 2])
def test_a_sigterm_to_the_whole_group_saves_and_pauses(runs: Runs, foreign_python: Path, ranks: int) -> None:
    python = [str(foreign_python)]
    launcher = [*python, "-m", "torch.distributed.run", "--nproc-per-node", "2"] if ranks == 2 else python
    process = runs.begin("--name", "one", "--", *launcher, "train.py", "60", "0.15", "out", group=True)
    runs.until(lambda: running_at(runs) >= 3)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    status = runs.file("one", "status.json")
    assert (status["state"], weights(out)) == ("paused", ""), err
    assert (runs.folder / "out" / f"checkpoint-{status['step']}" / "manifest.json").is_file()
    assert status["step"] % 5, "the script itself saves every five steps"
    assert "tunefleet run --resume one" in err


def test_a_second_sigterm_ends_the_script_at_once(runs: Runs, foreign_python: Path) -> None:
    process = runs.begin("--name", "one", "--", str(foreign_python), "train.py", "20", "30", "out", group=True)
    runs.endpoint("one")
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGTERM)
    time.sleep(3.0)
    assert process.poll() is None, "it waits for the end of its step"
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=100)
    assert (process.returncode, time.monotonic() - begun < 10) == (128 + signal.SIGTERM, True)
    assert runs.file("one", "status.json")["state"] == "killed"


def test_ranks_of_torchrun_are_one_run(runs: Runs, foreign_python: Path) -> None:
    launcher = [str(foreign_python), "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    process = runs.begin("--name", "two", "--", *launcher, "train.py", "40", "0.1", "out")
    runs.endpoint("two")
    steering = JobController.here(runs.endpoints, "two")
    reply = steering.send("pause")
    state = wait_for(lambda: steering.outcome(reply.command_id), 60)
    assert state.state == "durable"
    _, err = process.communicate(timeout=100)
    assert (process.returncode, runs.file("two", "status.json")["state"]) == (0, "paused"), err
    assert len(runs.file("two", "trainings.json")["trainings"]) == 1


def test_the_exit_code_is_the_scripts_and_it_is_said_that_nothing_trained(runs: Runs) -> None:
    code, out, err = runs.run("--name", "x", "--", sys.executable, "-I", "-c", "print('hello'); raise SystemExit(7)")
    assert (code, out) == (7, "hello\n")
    assert "No Trainer was created in this command" in err
    assert (runs.folder / "tunefleet-runs/x/train.log").read_text() == "hello\n"
    # It never trained, so the name is free again; a command that is not there is a clear error.
    code, _, err = runs.run("--name", "x", "--", "no-such-command")
    assert (code, "Cannot run no-such-command" in err) == (8, True)
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
    from tunefleet.runtime.foreground import ForegroundRun
    from tunefleet.schemas.job_folder import Job, JobFolder

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
