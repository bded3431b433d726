"""The keeper: the parent of one trainer process, in a session of its own.

It holds the job's lock, forks the trainer, waits, keeps `train.log` within its limit meanwhile, removes what the
trainer left in its process group, and writes `exit.json`. It depends on no other process: if server, worker or fork
server dies, the job still ends properly. If the keeper is killed the trainer goes on, and its `status.json` says how it
ended. Standard library only: there is one per job.

As a program (a cold start): `python -m tunefleet.runtime.launch.job_parent FOLDER REPLY_FD`; the trainer is a fresh
interpreter, that of the job's environment if it names one, or for a job of several processes their launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tunefleet.errors import TunefleetError
from tunefleet.runtime import job_log, locks
from tunefleet.runtime.gpu import gpus
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json, write_json

PROGRAM = "tunefleet.workloads.entrypoint"
LAUNCHER = "tunefleet.workloads.distributed.torchrun"
_PATIENCE_S = 5.0
_LOG_LOOK_S = 0.25
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOTICE = signal.SIGUSR1
"""Slurm sends it to every process on a node whose time is over soon. It is for the worker, which lets the job save."""


@dataclass(frozen=True)
class Held:
    """A job whose locks this process and its children hold."""

    folder: Path
    job: dict[str, Any]
    log_offset: int


class RefusedError(Exception):
    """The job cannot start; `code` is `busy`, `ended` or `machine`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def hold(folder: Path) -> Held:
    """Take the job's locks and make this process its keeper: output to the log, no terminal, own session.

    Raises:
        RefusedError: If the job lives already, this launch has ended before, or a GPU is taken.
    """
    job = read_json(folder / "job.json")
    if job is None:
        raise RefusedError("machine", f"{folder} has no readable job.json.")
    if (python := job.get("python")) and not os.access(python, os.X_OK):
        raise RefusedError("machine", f"The environment of job {job['job_id']} is gone: there is no {python}.")
    if locks.take(folder / "lock", patience_s=_PATIENCE_S) is None:
        raise RefusedError("busy", f"Job {job['job_id']} is running already.")
    if (read_json(folder / "exit.json") or {}).get("launch") == job["launch"]:
        raise RefusedError("ended", f"Launch {job['launch']} of job {job['job_id']} has ended before.")
    if job.get("endpoint_dir"):
        try:
            gpus.claim(gpus.ledger_dir(Path(job["endpoint_dir"])), job.get("gpus") or (), job["job_id"])
        except TunefleetError as error:
            raise RefusedError("machine", str(error)) from None
    # What an earlier launch left would be taken for the end of this one.
    for name in ("exit.json", "status.json", "cancel.json", "end.json", "process.json"):
        (folder / name).unlink(missing_ok=True)
    return Held(folder, job, _redirect(folder / "train.log"))


def fork_trainer(held: Held, reply_fd: int, *, warm: bool) -> int:
    """Fork the trainer into a process group of its own; it says who it is before anything else."""
    # The trainer and what it starts inherit that of the notice; a script that wants the signal takes it itself.
    for number in (*_IGNORED, NOTICE):
        signal.signal(number, signal.SIG_IGN)
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        os.close(reply_fd)
        return pid
    os.setpgid(0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    process = {
        "launch": held.job["launch"],
        "pid": os.getpid(),
        "process_started_at": process_identity.process_started_at(os.getpid()),
        "boot_id": process_identity.boot_id(),
        "started_at": time.time(),
        "log_offset": held.log_offset,
        "warm": warm,
        "keeper_pid": keeper,
        "keeper_started_at": process_identity.process_started_at(keeper),
    }
    write_json(held.folder / "process.json", process, sync=True)
    reply(reply_fd, ok=True, pid=os.getpid())
    return 0


def wait(held: Held, pid: int) -> None:
    """Wait for the trainer, end what it left behind, and write how it ended; its log stays within its limit."""
    limit = held.job.get("log_bytes") or job_log.LIMIT_BYTES
    over = threading.Event()
    limiting = threading.Thread(target=_limit_log, args=(held.folder / "train.log", limit, over), daemon=True)
    limiting.start()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    # Before the trainer is reaped: as long as its pid is taken, the group's number can be nobody else's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if _has_launcher(held.job):
        _end_ranks(held.folder)
    returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    over.set()
    limiting.join()  # not in the midst of a cut
    end = {"launch": held.job["launch"], "pid": pid, "returncode": returncode, "at": time.time()}
    write_json(held.folder / "exit.json", end, sync=True)


def _limit_log(log: Path, limit_bytes: int, over: threading.Event) -> None:
    said = ""
    while not over.wait(_LOG_LOOK_S):
        try:
            job_log.shorten(log, limit_bytes)
        except OSError as error:
            if str(error) != said:  # our standard error is that log
                sys.stderr.write(f"This log is over its limit and cannot be cut: {error}\n")
                sys.stderr.flush()
            said = str(error)


def _has_launcher(job: dict[str, Any]) -> bool:
    return int(job.get("processes") or 1) > 1 or bool(job.get("gang"))


def _end_ranks(folder: Path) -> None:
    """End the ranks that a killed launcher has left: each has a session of its own, and holds the job's lock."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := locks.holders(folder / "lock")) and time.monotonic() < deadline:
        for rank in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(rank, signal.SIGKILL)
        time.sleep(0.01)


def reply(fd: int, **fields: Any) -> None:
    """Answer whoever asked for the start, if he still listens, and close the line."""
    try:
        os.write(fd, json.dumps(fields).encode() + b"\n")
    except OSError as error:
        # The job's fate is in its folder; nobody has to hear this.
        sys.stderr.write(f"The supervisor does not listen any more: {error}\n")
    finally:
        os.close(fd)


def _redirect(log: Path) -> int:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    sys.stderr.flush()
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    for source in {nothing, out} - {0, 1, 2}:
        os.close(source)
    return job_log.end(log)


def _exec(held: Held) -> NoReturn:
    os.chdir(held.folder)
    processes = int(held.job.get("processes") or 1)
    alone = not _has_launcher(held.job)
    program = [PROGRAM, str(held.folder)] if alone else [LAUNCHER, str(held.folder), str(processes)]
    # By the path in the environment, which is how Python finds what is installed there.
    python = held.job.get("python") or sys.executable
    os.execv(python, [python, "-P", "-u", "-m", *program])


def main(arguments: list[str]) -> int:
    """Keep one job whose trainer starts in a fresh interpreter."""
    folder, reply_fd = Path(arguments[0]), int(arguments[1])
    os.set_inheritable(reply_fd, False)
    try:
        held = hold(folder)
    except RefusedError as refusal:
        reply(reply_fd, ok=False, code=refusal.code, message=str(refusal))
        return 1
    pid = fork_trainer(held, reply_fd, warm=False)
    if pid == 0:
        _exec(held)
    wait(held, pid)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
