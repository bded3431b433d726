"""Runs a job as a worker does, without a worker: in its own process and folder."""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tunefleet.errors import ConflictError, UnreachableError
from tunefleet.executors.base import JobExecutor
from tunefleet.runtime import Supervisor, new_launch_id
from tunefleet.runtime.exit_classification import JobEnd
from tunefleet.runtime.handle import JobHandle
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.job_folder import JobFolder, JobProcess, MergeChild
from tunefleet.schemas.worker_link import Offer
from tunefleet.settings import inherited_environment


def offer_of(kind: str, spec: Mapping[str, Any], *, task_id: str = "task-own", attempt: int = 1) -> Offer:
    """Return an offer as a server creates it."""
    written = {"taskType": kind, **spec}
    return Offer(
        token="token", task_id=task_id, workflow_id="wf-own", attempt=attempt, kind=kind, name=kind, spec=written
    )


class Runner:
    """Runs the jobs of one executor, in one job folder.

    Args:
        folder: Parent of the job folder; ignored if `warm`.
        environment: Environment variables of the jobs in addition to those of this process.
        timeout_s: Timeout of a launch.
        warm: Fork jobs from a process that has imported the training libraries; all runners share it.
    """

    def __init__(
        self,
        executor: JobExecutor,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float,
        warm: bool = False,
    ) -> None:
        self._executor = executor
        self._timeout_s = timeout_s
        self._attempt = 0
        self._env = dict(environment or {})
        self._jobs = _warm() if warm else _supervisor(folder, warm=False)
        self.task_id = f"task-{uuid.uuid4().hex[:12]}"

    @property
    def folder(self) -> JobFolder:
        """The job folder."""
        return self._jobs.folder(self.task_id)

    def launch(
        self, spec: Mapping[str, Any], *, inputs: Mapping[str, str], children: Sequence[MergeChild] = ()
    ) -> JobHandle:
        """Start the job, or start it again in its existing folder."""
        self._attempt += 1
        offer = offer_of(self._executor.kind, spec, task_id=self.task_id, attempt=self._attempt)
        job = self._executor.job(offer, launch=new_launch_id(), inputs=inputs)
        changes = {"merge_children": tuple(children), "env": {**job.env, **self._env}}
        return self._jobs.launch(job.model_copy(update=changes))

    def end(self, handle: JobHandle) -> JobEnd:
        """Wait for the end of a launch; fail the test on a timeout."""
        end = handle.wait(self._timeout_s)
        if end is None:
            # Without a grace period: the test has failed already.
            handle.cancel(0)
            handle.wait(30)
            raise AssertionError(f"The job did not end within {self._timeout_s:g} seconds.\n{self.log(handle)}")
        return end

    def kill(self, handle: JobHandle, when: Callable[[Path], bool]) -> bool:
        """Kill the job's process once a condition is true; return whether it was still running.

        Args:
            when: Called repeatedly with the job folder.
        """
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if handle.poll() is not None:
                return False
            if handle.folder.process_json.exists() and when(handle.folder.root):
                process = JobProcess.model_validate_json(handle.folder.process_json.read_bytes())
                os.kill(process.pid, signal.SIGKILL)
                end = self.end(handle)
                return end.outcome != "completed"
            time.sleep(0.005)
        raise AssertionError(f"The condition for the kill was not met within {self._timeout_s:g} seconds.")

    def ask(self, handle: JobHandle, *commands: ControlCommand) -> bool:
        """Send commands to the job as soon as it takes any; return whether it took all of them.

        Args:
            commands: Each uses its name as its id.
        """
        waiting = list(commands)
        deadline = time.monotonic() + self._timeout_s
        while waiting and handle.poll() is None:
            assert time.monotonic() < deadline, f"The job took no command within {self._timeout_s:g} s."
            try:
                handle.command(waiting[0], command_id=waiting[0])
            except (ConflictError, UnreachableError):
                time.sleep(0.005)  # it is still loading
                continue
            del waiting[0]
        return not waiting

    def log(self, handle: JobHandle) -> str:
        """Return the job's log."""
        return handle.folder.log.read_text(errors="replace") if handle.folder.log.exists() else ""


def _supervisor(folder: Path, *, warm: bool) -> Supervisor:
    return Supervisor(folder, endpoints_dir=folder / ".jobs", warm=warm, base_env=inherited_environment())


@cache
def _warm() -> Supervisor:
    folder = tempfile.TemporaryDirectory(prefix="tunefleet-contract-", ignore_cleanup_errors=True)
    found = _supervisor(Path(folder.name), warm=True)
    atexit.register(folder.cleanup)
    atexit.register(found.close)  # runs before the folder is removed
    return found
