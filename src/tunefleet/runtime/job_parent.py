"""The parent process of one trainer process, in a session of its own.

It holds the job's lock, forks the trainer, waits, keeps `train.log` within its limit, kills leftover processes of the
trainer's process group, and writes `exit.json`. It depends on no other process: if server, worker or fork server dies,
the job still ends properly. If the parent process is killed, the trainer continues, and `status.json` has its end.
Standard library only, since there is one per job.

As a program (a cold start): `python -m tunefleet.runtime.job_parent FOLDER REPLY_FD`; the trainer runs in a
fresh interpreter, that of the job's environment if it has one, or in the launcher of a job with several processes.
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
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json, write_json

PROGRAM = "tunefleet.workloads.entrypoint"
LAUNCHER = "tunefleet.workloads.distributed.torchrun"
_PATIENCE_S = 5.0
_LOG_LOOK_S = 0.25
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Slurm sends this signal to every process on a node shortly before its time limit. Only the worker handles it, by
# saving a checkpoint of the job.
PREEMPTION_NOTICE = signal.SIGUSR1


@dataclass(frozen=True)
class LockedJob:
    """A job whose locks are held by this process and its children."""

    folder: Path
    job: dict[str, Any]
    log_offset: int


class LaunchRefusedError(Exception):
    """The job cannot start; `code` is `busy`, `ended` or `machine`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def lock_job(folder: Path) -> LockedJob:
    """Take the job's locks and make this process its parent: output to the log, no terminal, own session.

    Raises:
        LaunchRefusedError: If the job is already running, this launch has already ended, or a GPU is in use.
    """
    job = read_json(folder / "job.json")
    if job is None:
        raise LaunchRefusedError("machine", f"{folder} has no readable job.json.")
    if (python := job.get("python")) and not os.access(python, os.X_OK):
        raise LaunchRefusedError("machine", f"The environment of job {job['job_id']} is missing: {python} not found.")
    if locks.take(folder / "lock", patience_s=_PATIENCE_S) is None:
        raise LaunchRefusedError("busy", f"Job {job['job_id']} is already running.")
    if (read_json(folder / "exit.json") or {}).get("launch") == job["launch"]:
        raise LaunchRefusedError("ended", f"Launch {job['launch']} of job {job['job_id']} has already ended.")
    if job.get("endpoint_dir"):
        try:
            gpu_locks.claim(gpu_locks.ledger_dir(Path(job["endpoint_dir"])), job.get("gpus") or (), job["job_id"])
        except TunefleetError as error:
            raise LaunchRefusedError("machine", str(error)) from None
    # Files of an earlier launch would be taken for the end of this one.
    for name in ("exit.json", "status.json", "cancel.json", "end.json", "process.json"):
        (folder / name).unlink(missing_ok=True)
    return LockedJob(folder, job, _redirect(folder / "train.log"))


def fork_trainer(held: LockedJob, reply_fd: int, *, warm: bool) -> int:
    """Fork the trainer into its own process group; returns its pid, and 0 in the trainer."""
    # Ignored signals are inherited: a trainer, or a script that it starts, can still install a handler for the notice.
    for number in (*_IGNORED, PREEMPTION_NOTICE):
        signal.signal(number, signal.SIG_IGN)
    parent_pid = os.getpid()
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
        "keeper_pid": parent_pid,
        "keeper_started_at": process_identity.process_started_at(parent_pid),
    }
    # Written by the trainer itself, before anything else: its pid is on disk even if the parent process is killed now.
    write_json(held.folder / "process.json", process, sync=True)
    reply(reply_fd, ok=True, pid=os.getpid())
    return 0


def wait(held: LockedJob, pid: int) -> None:
    """Wait for the trainer, kill its leftover processes, and write its exit code; limits its log meanwhile."""
    limit = held.job.get("log_bytes") or job_log.LIMIT_BYTES
    over = threading.Event()
    limiting = threading.Thread(target=_limit_log, args=(held.folder / "train.log", limit, over), daemon=True)
    limiting.start()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    # Before the trainer is reaped (WNOWAIT): until then its pid, and so the group's id, cannot be reused.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if _has_launcher(held.job):
        _end_ranks(held.folder)
    returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    over.set()
    limiting.join()  # must not be interrupted during a cut
    end = {"launch": held.job["launch"], "pid": pid, "returncode": returncode, "at": time.time()}
    write_json(held.folder / "exit.json", end, sync=True)


def _limit_log(log: Path, limit_bytes: int, over: threading.Event) -> None:
    reported = ""
    while not over.wait(_LOG_LOOK_S):
        try:
            job_log.shorten(log, limit_bytes)
        except OSError as error:
            if str(error) != reported:  # once, since standard error is that log
                sys.stderr.write(f"This log exceeds its limit and cannot be truncated: {error}\n")
                sys.stderr.flush()
            reported = str(error)


def _has_launcher(job: dict[str, Any]) -> bool:
    return int(job.get("processes") or 1) > 1 or bool(job.get("gang"))


def _end_ranks(folder: Path) -> None:
    """Kill the ranks of a killed launcher: each has its own session, and holds the job's lock."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := locks.holders(folder / "lock")) and time.monotonic() < deadline:
        for rank in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(rank, signal.SIGKILL)
        time.sleep(0.01)


def reply(fd: int, **fields: Any) -> None:
    """Send a reply to the process that requested the start, and close the descriptor."""
    try:
        os.write(fd, json.dumps(fields).encode() + b"\n")
    except OSError as error:
        # Not an error: the state of the job is in its folder.
        sys.stderr.write(f"The supervisor is gone: {error}\n")
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


def _exec(held: LockedJob) -> NoReturn:
    os.chdir(held.folder)
    processes = int(held.job.get("processes") or 1)
    alone = not _has_launcher(held.job)
    program = [PROGRAM, str(held.folder)] if alone else [LAUNCHER, str(held.folder), str(processes)]
    # The path inside the virtual environment, not the resolved one: Python finds its packages by it.
    python = held.job.get("python") or sys.executable
    os.execv(python, [python, "-P", "-u", "-m", *program])


def main(arguments: list[str]) -> int:
    """Run one job whose trainer starts in a fresh interpreter."""
    folder, reply_fd = Path(arguments[0]), int(arguments[1])
    os.set_inheritable(reply_fd, False)
    try:
        held = lock_job(folder)
    except LaunchRefusedError as refusal:
        reply(reply_fd, ok=False, code=refusal.code, message=str(refusal))
        return 1
    pid = fork_trainer(held, reply_fd, warm=False)
    if pid == 0:
        _exec(held)
    wait(held, pid)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
