"""A fake trainer program: what a job does for its supervisor, without any training library.

It reports with a real session of `attach` and opens a real control port. `spec["do"]` of its job names what it does.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefleet import errors, trainer_control
from tunefleet.runtime.warm.lazy_imports import executed
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.control.control_server import ControlServer
from tunefleet.workloads.common import job_secrets


def main(folder: Path) -> None:
    """Do what the spec says."""
    session = trainer_control.open_session(folder)
    options = dict(session.job["spec"])
    ACTIONS[options.pop("do")](session, **options)


def finish(session: trainer_control.JobSession, steps: int = 3, say: str = "") -> None:
    """Log some steps and end properly."""
    if say:
        print(say)
    for step in range(1, steps + 1):
        session.journal.metric(step, {"loss": 1.0 / step}, window=(step, step))
    session.status.write(state="running", phase="training", step=steps)


def flood(session: trainer_control.JobSession, mebibytes: int) -> None:
    """Print a lot, a mebibyte in ten milliseconds at most."""
    for number in range(mebibytes):
        print(f"{number:08d}".ljust((1 << 20) - 1))
        time.sleep(0.01)


def train(session: trainer_control.JobSession, steps: int = 500, step_s: float = 0.02, stubborn: bool = False) -> None:
    """Take steps and obey commands at their ends; a stubborn one ends no step and hears no SIGTERM."""
    board = CommandQueue(session.folder)
    server = ControlServer(
        session.job["job_id"], board, session.status, Path(session.job["endpoint_dir"]), job_folder=session.folder
    )
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.start()
    session.status.write(state="running", phase="training", max_steps=steps)
    if stubborn:
        time.sleep(60)
    for step in range(1, steps + 1):
        time.sleep(step_s)
        session.journal.metric(step, {"loss": 1.0}, window=(step, step))
        session.status.update(step=step)
        for command in board.take():
            board.applied(command.command_id, step)
            if command.command == "abort":
                session.status.write(state="aborted", intent="abort", step=step)
                sys.exit(0)
            session.status.write(intent="stop")
            return


def hang(session: trainer_control.JobSession, steps: int = 3) -> None:
    """Take some steps, then wait for a lock that nobody gives back."""
    session.status.write(state="running", phase="training", max_steps=9)
    for step in range(1, steps + 1):
        session.journal.metric(step, {"loss": 1.0}, window=(step, step))
        session.status.update(step=step)
    _wait_for_ever(threading.Lock())


def _wait_for_ever(lock: threading.Lock) -> None:
    with lock:
        lock.acquire()


def prepare(session: trainer_control.JobSession, busy_s: float = 1.0) -> None:
    """Compute without a word, as tokenising does; then only wait."""
    deadline = time.monotonic() + busy_s
    while time.monotonic() < deadline:
        sum(range(10_000))
    (session.folder / "prepared").touch()
    time.sleep(60)


def fail(session: trainer_control.JobSession, error: str) -> None:
    """Raise."""
    raise {
        "input": errors.DataError("The dataset has no rows."),
        "memory": MemoryError("no memory for a tensor"),
        "disk": OSError(28, "No space left on device"),
        "network": errors.UnreachableError("The Hub does not respond."),
        "bug": ZeroDivisionError("division by zero"),
    }[error]


def die(session: trainer_control.JobSession, number: int) -> None:
    """End by a signal, without a word."""
    os.kill(os.getpid(), number)
    time.sleep(10)


def leave(session: trainer_control.JobSession, code: int, say: str = "") -> None:
    """End at once, past everything that would report."""
    sys.stderr.write(say)
    sys.stderr.flush()
    os._exit(code)


def beget(session: trainer_control.JobSession, new_session: bool = False) -> None:
    """Start a process that would live on, and take steps."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=new_session, close_fds=False
    )
    (session.folder / "child.pid").write_text(str(child.pid))
    train(session)


def look(session: trainer_control.JobSession) -> None:
    """Write down what the process was given."""
    facts = {
        "environ": dict(os.environ),
        "cwd": str(Path.cwd()),
        "argv": sys.argv,
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "stdout": str(Path("/proc/self/fd/1").readlink()),
        "signals": {name: repr(signal.getsignal(getattr(signal, name))) for name in ("SIGTERM", "SIGCHLD", "SIGINT")},
        "threads": threading.active_count(),
    }
    (session.folder / "facts.json").write_text(json.dumps(facts))
    logging.getLogger("fake").info("told")
    print("printed, and seen before the end")
    time.sleep(0.5)


def pin(session: trainer_control.JobSession, devices: str) -> None:
    """Choose devices in its own process, as trainers do; write down what it had been given."""
    (session.folder / "given.json").write_text(json.dumps(os.environ.get("CUDA_VISIBLE_DEVICES")))
    os.environ["CUDA_VISIBLE_DEVICES"] = devices


def compute(session: trainer_control.JobSession) -> None:
    """Use the training libraries that a fork server has imported, and write down how they were found."""
    import numpy
    import torch
    from transformers import conversion_mapping

    lazy = sys.modules["bitsandbytes"]
    facts = {
        "executed": executed(lazy),
        "cuda": torch.cuda.is_initialized(),
        "renamed": bool(conversion_mapping._checkpoint_conversion_mapping_cache),
        "threads": torch.get_num_threads(),
        "product": float((torch.ones(600, 600) @ torch.ones(600, 600)).sum()),
        "random": [random.random(), float(numpy.random.rand()), float(torch.rand(1))],
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "function": lazy.functional.quantize_4bit.__name__,
        "executed_after": executed(lazy),
    }
    (session.folder / "facts.json").write_text(json.dumps(facts))


def reveal(session: trainer_control.JobSession, **options: str) -> None:
    """Put the secrets of the spec in, say them wherever a program says something, and fail with them."""
    filled = job_secrets.filled({**session.job["spec"], **options})
    found = {"token": filled["token"], "left": [name for name in os.environ if name.startswith("TUNEFLEET_SECRET_")]}
    Path(os.environ["TEST_FOLDER"], "revealed.json").write_text(json.dumps(found), encoding="utf-8")
    print("printed", filled["token"])
    sys.stderr.write(f"written {filled['token']}\n")
    logging.getLogger("fake").warning("logged %s", filled["token"])
    raise RuntimeError(f"The server refused {filled['token']}.")


ACTIONS: dict[str, Callable[..., Any]] = {
    "finish": finish, "train": train, "fail": fail, "die": die, "leave": leave, "beget": beget, "look": look,
    "compute": compute, "hang": hang, "prepare": prepare, "reveal": reveal, "pin": pin, "flood": flood,
}  # fmt: skip
