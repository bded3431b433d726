"""Runs a command so that the training in it reports to the job, is steered as the job, and goes on where it was."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefleet.errors import InputError
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
    """A command that has ended, and has not failed."""

    state: str
    attached: bool
    seconds: float

    @property
    def ended(self) -> bool:
        """Whether the job ends here, without a result: it was paused or aborted."""
        return self.state in ("paused", "aborted")


def environment_of(
    name: str | None, variables: Mapping[str, str], *, pointer: str = "environment", keeps: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment of a command: the job's own without credentials, and a Python to be found first.

    Args:
        name: One of `tunefleet env`; None for the one that the worker runs in.
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
    """Run a command until it ends; whatever trains in it by a Hugging Face Trainer is the job's training.

    It takes the job's commands, writes its journal and status, and a launch after the first one resumes from the newest
    whole checkpoint. Meanwhile this process reports nothing.
    """
    began, folder = time.monotonic(), JobFolder(session.folder)
    site = inject.write_site(session.folder)
    environment = dict(env)
    environment[inject.ATTACHED_TO] = str(session.folder)
    environment["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH")])])
    session.status.write(state="running", phase="running")
    offset = job_log.end(folder.log)
    with session.lent():
        returncode = subprocesses.run([_found(argv[0], environment), *argv[1:]], env=environment, cwd=cwd)
    state = session.status.take_back()
    ours = [item for item in trainings.recorded(session.folder) if item.get("launch") == session.job["launch"]]
    ran = Ran(state if state in ("stopped", "paused", "aborted") else "completed", bool(ours), time.monotonic() - began)
    if ran.ended:
        return ran
    if state == "failed":
        said = session.status.fields
        raise CommandFailedError(str(said["error"]), said["error_kind"] or "bug", said["traceback"])
    if returncode < 0:
        session.close()
        subprocesses.end_like(returncode)
    if returncode > 0:
        raise _failure(folder, offset, argv[0], returncode)
    return ran


def _found(program: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program, as the command's own PATH has it and not ours."""
    path = shutil.which(program, path=environment.get("PATH"))
    if "/" in program:
        return program
    if path is None:
        raise InputError(
            f"There is no program {program} on the worker.",
            hint="Name one that its environment has, or a path in the task's folder such as ./train.sh.",
        )
    return path


def _failure(folder: JobFolder, offset: int, program: str, returncode: int) -> CommandFailedError:
    tail = log_tail(folder, offset)
    traceback = last_traceback(tail)
    last = traceback.strip().splitlines()[-1] if traceback else ""
    kind: ErrorKind = "oom" if any(sign in (last or tail[-4096:]) for sign in _MEMORY_SIGNS) else "bug"
    said = f": {last}" if last else "; its log says more"
    return CommandFailedError(f"{program} ended with exit code {returncode}{said}.", kind, traceback)
