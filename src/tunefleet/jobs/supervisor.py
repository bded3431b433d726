"""Starts jobs, warm where it can, and finds them again after a restart.

Holds no truth: a supervisor may die and another takes over from the job folders. It never ends a job by ending itself.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunefleet.attach import identity
from tunefleet.attach.endpoint import safe_job_id
from tunefleet.attach.files import read_json, write_json
from tunefleet.errors import ConflictError, InputError, MachineError
from tunefleet.jobs import locks
from tunefleet.jobs.environment import job_environment, needs_cold_start
from tunefleet.jobs.handle import JobHandle
from tunefleet.jobs.reply import read_reply
from tunefleet.jobs.warm import WarmStarter
from tunefleet.wire.jobfolder import Job, JobFolder, Shipped

logger = logging.getLogger(__name__)

_REPLY_S = 30.0


def new_launch_id() -> str:
    """Return the id of a new launch: one process start within an attempt."""
    return f"launch-{uuid.uuid4().hex[:12]}"


class Supervisor:
    """Runs the jobs of one results folder.

    Args:
        results_dir: Holds one job folder a job.
        endpoints_dir: Where live jobs make themselves findable.
        warm: Keep a fork server with the training libraries imported. It is started at once, so that it is ready when
            the first job comes.
        warm_idle_s: How long it is kept without a job.
        base_env: The jobs' environment; without secrets.
    """

    def __init__(
        self,
        results_dir: str | Path,
        *,
        endpoints_dir: str | Path,
        warm: bool = True,
        warm_idle_s: float = 1800.0,
        base_env: Mapping[str, str],
    ) -> None:
        self.results_dir = Path(results_dir).absolute()
        self.endpoints_dir = Path(endpoints_dir).absolute()
        self._base_env = dict(base_env)
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
        """Write `job.json`, durably, and start the trainer; returns when its process exists.

        Blocks for some ten milliseconds if the fork server is ready, for as long as its imports still take if it is
        just starting, and for an interpreter's start otherwise.

        Args:
            job: What to run; `launch` is new for each call.

        Raises:
            ConflictError: If the job lives already, or this launch has ended before.
            InputError: If the job cannot be run at all.
            MachineError: If a GPU is taken or the process cannot be started.
        """
        folder = self.folder(job.job_id)
        if job.processes > 1:
            raise InputError("A job of several processes is not available in this version.")
        if locks.is_held(folder.lock):
            raise ConflictError(f"Job {job.job_id} is running already.")
        if job.endpoint_dir is None:
            job = job.model_copy(update={"endpoint_dir": str(self.endpoints_dir)})
        folder.root.mkdir(parents=True, exist_ok=True)
        data = job.model_dump(mode="json")
        write_json(folder.job_json, data, sync=True)
        self._begin_log(folder, job.attempt)
        handle = JobHandle(job, folder, Path(job.endpoint_dir or self.endpoints_dir))
        reply = self._start(folder, data)
        # A fork server that answered too late may have started it: then it runs, and that is what was asked for.
        if not (reply.get("code") == "busy" and handle.started):
            _check(job, reply)
        return handle

    def adopt(self) -> list[JobHandle]:
        """Return the jobs that live, and those whose end nobody has acknowledged; oldest first."""
        handles = [handle for path in self.results_dir.glob("*/job.json") if (handle := self._adopted(path))]
        return sorted(handles, key=lambda handle: handle.folder.job_json.stat().st_mtime)

    def close(self) -> None:
        """End the fork server. Jobs live on."""
        if self._warm is not None:
            self._warm.close()

    def _start(self, folder: JobFolder, job: dict[str, Any]) -> dict[str, Any]:
        cold = "there is no fork server" if self._warm is None else needs_cold_start(self._base_env, job)
        if cold is None and self._warm is not None:
            reply = self._warm.start(folder.root)
            if reply is not None:
                return reply
            cold = "the fork server did not answer"
        logger.info("job(%s) starts cold: %s", job["job_id"], cold)
        return self._start_cold(folder, job)

    def _start_cold(self, folder: JobFolder, job: dict[str, Any]) -> dict[str, Any]:
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-P", "-m", "tunefleet.jobs.keeper", str(folder.root), str(write_fd)]
        try:
            with folder.log.open("ab") as log:
                keeper = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=job_environment(self._base_env, job),
                    pass_fds=(write_fd,),
                    start_new_session=True,
                )
        finally:
            os.close(write_fd)
        # Somebody must reap it while we live; when we die, init does.
        threading.Thread(target=keeper.wait, name=f"keeper-{keeper.pid}", daemon=True).start()
        with os.fdopen(read_fd) as pipe:
            reply = read_reply(pipe.fileno(), _REPLY_S)
        return reply or {"ok": False, "message": "The job's keeper could not be started; see its train.log."}

    def _begin_log(self, folder: JobFolder, attempt: int) -> None:
        """Note where the attempt's log begins: the server numbers its bytes from there."""
        shipped = Shipped.model_validate(read_json(folder.shipped_json) or {})
        if shipped.attempt != attempt or not folder.shipped_json.exists():
            size = folder.log.stat().st_size if folder.log.exists() else 0
            update = {"attempt": attempt, "log_base": size, "log_offset": 0}
            write_json(folder.shipped_json, shipped.model_copy(update=update).model_dump(mode="json"), sync=True)

    def _adopted(self, path: Path) -> JobHandle | None:
        folder = JobFolder(path.parent)
        try:
            job = Job.model_validate(read_json(path))
        except ValidationError as error:
            logger.warning("%s is not adopted, its job.json cannot be read: %s", path.parent, error)
            return None
        handle = JobHandle(job, folder, Path(job.endpoint_dir or self.endpoints_dir))
        read = (read_json(folder.end_json) or {}).get("launch") == job.launch
        return handle if handle.alive or (handle.started and not read) else None


def _warm_starter(base_env: Mapping[str, str], idle_s: float) -> WarmStarter | None:
    if sys.platform != "linux":
        return None  # forking after the imports is known to be safe on Linux only
    try:
        starter = WarmStarter(base_env, idle_s=idle_s)
        starter.prepare()
    except (OSError, MachineError) as error:
        logger.warning("Jobs start cold: %s", error)
        return None
    return starter


def _check(job: Job, reply: dict[str, Any]) -> None:
    if reply.get("ok"):
        logger.info("job(%s) runs as pid %s", job.job_id, reply.get("pid"))
        return
    message = str(reply.get("message"))
    if reply.get("code") in ("busy", "ended"):
        raise ConflictError(message)
    raise MachineError(message, detail=f"boot {identity.boot_id()}")
