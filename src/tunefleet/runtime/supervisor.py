"""Starts jobs, from the fork server if possible, and adopts them after a restart.

Stateless: if a supervisor dies, another takes over from the job folders. Jobs survive the end of the supervisor.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunefleet.errors import ConflictError, InputError, MachineError
from tunefleet.runtime import job_log, locks
from tunefleet.runtime.environment import job_environment, needs_cold_start
from tunefleet.runtime.handle import JobHandle, end_leftovers
from tunefleet.runtime.warm import engine_registry
from tunefleet.runtime.warm.client import WarmStarter, read_reply
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.control.discovery import safe_job_id
from tunefleet.trainer_control.files import make_private, read_json, write_json
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)

# How long the parent process may take to start: an interpreter on a loaded machine or a slow disk.
_REPLY_S = 30.0
# How long a job that has ended may take to release its lock.
_RELEASE_S = 5.0


def new_launch_id() -> str:
    """Return the id of a new launch: one process start within an attempt."""
    return f"launch-{uuid.uuid4().hex[:12]}"


class Supervisor:
    """Runs the jobs of one results folder."""

    def __init__(
        self,
        results_dir: str | Path,
        *,
        endpoints_dir: str | Path,
        warm: bool = True,
        warm_idle_s: float = 1800.0,
        base_env: Mapping[str, str],
        log_bytes: int = job_log.LIMIT_BYTES,
    ) -> None:
        self.results_dir = Path(results_dir).absolute()
        self.endpoints_dir = Path(endpoints_dir).absolute()
        self._base_env = dict(base_env)
        self._log_bytes = log_bytes
        self._warm = _warm_starter(self._base_env, warm_idle_s) if warm else None

    def folder(self, job_id: str) -> JobFolder:
        """Return the folder of a job.

        Raises:
            InputError: If the id cannot be a folder's name.
        """
        try:
            return JobFolder(self.results_dir / safe_job_id(job_id))
        except ValueError as error:
            raise InputError(str(error)) from None

    def launch(self, job: Job) -> JobHandle:
        """Write `job.json`, with fsync, and start the trainer; returns when its process exists.

        Blocks for some ten milliseconds if the fork server is ready, for the rest of its imports if it is just
        starting, and for the start of an interpreter otherwise.

        Raises:
            ConflictError: If the job is already running, or this launch has already ended.
            InputError: If the job id is invalid.
            MachineError: If a GPU is in use, or the process cannot be started.
        """
        folder = self.folder(job.job_id)
        if not _is_free(folder):
            raise ConflictError(f"Job {job.job_id} is already running.")
        make_private(folder.root)
        if job.gang is not None:
            # A node with the result of an earlier try would not run again, and the other nodes would wait for it.
            folder.responses_json.unlink(missing_ok=True)
        endpoint_dir = job.endpoint_dir or str(self.endpoints_dir)
        log = {"log_base": _log_base(folder, job.attempt), "log_bytes": self._log_bytes}
        job = job.model_copy(update={"endpoint_dir": endpoint_dir, **log})
        data = job.model_dump(mode="json")
        write_json(folder.job_json, data, sync=True)
        handle = JobHandle(job, folder, Path(endpoint_dir))
        # Before the start: a warm engine occupies most of the GPU's memory.
        engine_registry.free_gpus(job.gpus, wants_engine=job.engine)
        reply = self._start(folder, data)
        # A fork server that replied too late, or not at all, may have started the job; then the launch has succeeded.
        if reply.get("code") not in ("busy", "silent") or not handle.started:
            _check(job, reply)
        return handle

    def adopt(self) -> list[JobHandle]:
        """Return the running jobs, and those whose end was not acknowledged; oldest first."""
        handles = [handle for path in self.results_dir.glob("*/job.json") if (handle := self._adopted(path))]
        return sorted(handles, key=lambda handle: handle.folder.job_json.stat().st_mtime)

    def close(self) -> None:
        """End the fork server, and engines that are not in use. Jobs keep running."""
        engine_registry.end_idle(str(self.endpoints_dir))
        if self._warm is not None:
            self._warm.close()

    def _start(self, folder: JobFolder, job: dict[str, Any]) -> dict[str, Any]:
        cold = "there is no fork server" if self._warm is None else needs_cold_start(self._base_env, job)
        if cold is None and self._warm is not None:
            reply = self._warm.start(folder.root)
            if reply is not None:
                return reply
            cold = "the fork server did not respond"
        logger.info("Cold start of job(%s): %s", job["job_id"], cold)
        return self._start_cold(folder, job)

    def _start_cold(self, folder: JobFolder, job: dict[str, Any]) -> dict[str, Any]:
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd) as pipe:
            try:
                parent = _spawn_parent(folder, write_fd, job_environment(self._base_env, job))
            except OSError as error:
                raise MachineError(f"Cannot start job {job['job_id']}: {error}.", detail=repr(error)) from error
            finally:
                os.close(write_fd)
            reply = read_reply(pipe.fileno(), _REPLY_S)
        if reply is not None:
            return reply
        # Killed, so that it does not start after the launch has been reported as failed.
        parent.kill()
        message = f"Cannot start job {job['job_id']}: its parent process does not respond; see its train.log."
        return {"ok": False, "code": "silent", "message": message}

    def _adopted(self, path: Path) -> JobHandle | None:
        folder = JobFolder(path.parent)
        try:
            job = Job.model_validate(read_json(path))
        except ValidationError as error:
            logger.warning("Not adopting %s, its job.json cannot be read: %s", path.parent, summary(error))
            return None
        handle = JobHandle(job, folder, Path(job.endpoint_dir or self.endpoints_dir))
        read = (read_json(folder.end_json) or {}).get("launch") == job.launch
        return handle if not read and (handle.alive or handle.started) else None


def _warm_starter(base_env: Mapping[str, str], idle_s: float) -> WarmStarter | None:
    if sys.platform != "linux":
        return None  # forking after the imports is only safe on Linux
    try:
        starter = WarmStarter(base_env, idle_s=idle_s)
        starter.prepare()
    except (OSError, MachineError) as error:
        logger.warning("Warm starts are disabled: %s", error)
        return None
    return starter


def _is_free(folder: JobFolder) -> bool:
    """Return whether no process of the job is running; kills leftover processes."""
    # A job that has just ended gets some time to release its lock.
    deadline = time.monotonic() + _RELEASE_S
    while locks.is_held(folder.lock):
        if not end_leftovers(folder) and not folder.exit_json.exists():
            return False
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _log_base(folder: JobFolder, attempt: int) -> int:
    """Return the position at which the attempt's log starts; the server counts its bytes from there."""
    before = read_json(folder.job_json) or {}
    if before.get("attempt") == attempt:
        return int(before.get("log_base") or 0)
    if folder.responses_json.exists():
        # An earlier attempt that was declared lost has completed the work; the rest of its log belongs to this one.
        shipped = read_json(folder.shipped_json) or {}
        return sum(int(shipped.get(name) or 0) for name in ("log_base", "log_offset", "log_skipped"))
    return job_log.end(folder.log)


def _spawn_parent(folder: JobFolder, reply_fd: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "tunefleet.runtime.job_parent", str(folder.root), str(reply_fd)]
    with folder.log.open("ab") as log:
        parent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(reply_fd,),
            start_new_session=True,
        )
    # Reaped by a thread; if the supervisor dies first, init does it.
    threading.Thread(target=parent.wait, name=f"job-parent-{parent.pid}", daemon=True).start()
    return parent


def _check(job: Job, reply: dict[str, Any]) -> None:
    if reply.get("ok"):
        logger.info("Started job(%s) as pid %s", job.job_id, reply.get("pid"))
        return
    message = str(reply.get("message"))
    if reply.get("code") in ("busy", "ended"):
        raise ConflictError(message)
    raise MachineError(message, detail=f"boot {process_identity.boot_id()}")
