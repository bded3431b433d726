"""Runs a command whose training run reports to the job, takes its commands, and resumes."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefleet.errors import InputError, names_machine_error
from tunefleet.runtime import envs, job_log
from tunefleet.runtime.exit_classification import last_traceback, log_tail
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.settings import SECRETS_DIR, inherited_environment, without_credentials
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.autoload import inject, trainings
from tunefleet.workloads.common import subprocesses
from tunefleet.workloads.faults import CommandFailedError, ErrorKind

_MEMORY_SIGNS = ("OutOfMemoryError", "out of memory", "MemoryError", "Cannot allocate memory", "std::bad_alloc")


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended without a failure."""

    state: str
    attached: bool
    seconds: float

    @property
    def ended(self) -> bool:
        """Whether the job ends here without a result, because it was paused or aborted."""
        return self.state in ("paused", "aborted")


def environment_of(
    name: str | None, variables: Mapping[str, str], *, pointer: str = "environment", keeps: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment of a command: the job's own without credentials, with the right Python first in PATH.

    Args:
        name: One of `tunefleet env`; None for the worker's own.
    """
    inherited = inherited_environment(SECRETS_DIR, "PYTHONHOME")
    found = without_credentials(inherited) | {key: inherited[key] for key in keeps if key in inherited}
    bin_dir = Path(sys.executable).parent
    if name is not None:
        reason = envs.reason(name)
        if reason is not None:
            raise InputError(f"spec.{pointer}: {reason}")
        bin_dir = envs.at(name).bin_dir
    found |= {"VIRTUAL_ENV": str(bin_dir.parent), "PYTHONUNBUFFERED": "1", **variables}
    found["PATH"] = os.pathsep.join([str(bin_dir), *filter(None, [found.get("PATH")])])
    return found


def run_attached(session: JobSession, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Ran:
    """Run a command until it ends; a Hugging Face Trainer in it trains as the job's training run.

    It takes the job's commands, writes its journal and status, and after a relaunch resumes from the newest complete
    checkpoint. Meanwhile this process reports nothing.
    """
    began, folder = time.monotonic(), JobFolder(session.folder)
    site = inject.write_site(session.folder)
    environment = dict(env)
    environment[inject.ATTACHED_TO] = str(session.folder)
    environment["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH")])])
    session.status.write(state="running", phase="running")
    # Only the output of this command is searched for an error.
    offset = job_log.end(folder.log)
    # Sequence numbers have one writer: this process must not report while the command does.
    with session.lent():
        returncode = subprocesses.run([_found(argv[0], environment), *argv[1:]], env=environment, cwd=cwd)
    state = session.status.take_back()
    recorded = [item for item in trainings.recorded(session.folder) if item.get("launch") == session.job["launch"]]
    ended_as = state if state in ("stopped", "paused", "aborted") else "completed"
    ran = Ran(ended_as, bool(recorded), time.monotonic() - began)
    if ran.ended:
        return ran
    if state == "failed":
        fields = session.status.fields
        raise CommandFailedError(str(fields["error"]), fields["error_kind"] or "bug", fields["traceback"])
    # A signal must look like one to the supervisor, which decides by it whether to relaunch.
    if returncode < 0:
        session.close()
        subprocesses.exit_by_signal(returncode)
    if returncode > 0:
        raise _failure(folder, offset, argv[0], returncode)
    return ran


def _found(program: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program in the command's own PATH, not in this process's."""
    path = shutil.which(program, path=environment.get("PATH"))
    if "/" in program:
        return program
    if path is None:
        raise InputError(
            f"Program {program} not found on the worker.",
            hint="Name a program of its environment, or a path in the task's folder such as ./train.sh.",
        )
    return path


def _failure(folder: JobFolder, offset: int, program: str, returncode: int) -> CommandFailedError:
    tail = log_tail(folder, offset)
    traceback = last_traceback(tail)
    last = traceback.strip().splitlines()[-1] if traceback else ""
    kind = _kind_of(last or tail[-4096:])
    reason = f": {last}" if last else "; see its log"
    return CommandFailedError(f"{program} ended with exit code {returncode}{reason}.", kind, traceback)


def _kind_of(text: str) -> ErrorKind:
    if any(sign in text for sign in _MEMORY_SIGNS):
        return "oom"
    if "No space left on device" in text:
        return "disk"
    return "machine" if names_machine_error(text) else "bug"
