"""Controls a job without a port: a command is a file that the trainer polls for, its outcome a file next to it."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.runtime.control.discovery import LocalJob
from tunefleet.schemas.control import CommandFile, CommandState, ControlReply
from tunefleet.trainer_control.files import read_json, write_json


class FileControlClient:
    """Controls one job through its `control/` folder."""

    def __init__(self, job: LocalJob) -> None:
        self.job_id = job.job_id
        self._job = job
        self._asked: dict[str, Path] = {}

    def send(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Write a command; only its outcome shows that it was read.

        Raises:
            ConflictError: If the job has no folder for commands.
        """
        folder = self._folder
        folder.mkdir(exist_ok=True, mode=0o700)
        now = time.time()
        name = command_id or f"cmd-{uuid.uuid4().hex[:12]}"
        file = _free(folder, command, int(now * 1000))
        asked = CommandFile(command=command, timestamp=now, data=data or {}, command_id=name)
        write_json(file, asked.model_dump(), mode=0o600)
        self._asked[name] = file
        message = f"Command {command} is queued for the job"
        return ControlReply(command=command, command_id=name, timestamp=now, message=message)

    def state(self, command_id: str) -> CommandState:
        """Return the state of a command: `pending` until its outcome is written."""
        file = self._asked.get(command_id) or self._search(command_id)
        outcome = read_json(file.with_suffix(".outcome.json"))
        if outcome is None:
            command = file.name.rpartition("_")[0]
            return CommandState(command_id=command_id, command=command, state="pending")
        try:
            return CommandState.model_validate(outcome)
        except ValidationError as error:
            raise NotFoundError(f"The outcome of command {command_id} cannot be read.", detail=str(error)) from None

    def status(self) -> dict[str, Any]:
        """Return the job's status file in the format of the control port."""
        status = self._job.last_status()
        if status is None:
            raise NotFoundError(f"Job {self.job_id} has not written a status yet.")
        return status_view(self.job_id, status.model_dump(mode="json"))

    @property
    def _folder(self) -> Path:
        parent = self._job.folder
        if parent is None or not parent.is_dir():
            raise ConflictError(f"Job {self.job_id} no longer accepts commands.")
        return parent / "control"

    def _search(self, command_id: str) -> Path:
        for file in sorted(self._folder.glob("*.json")):
            if (read_json(file) or {}).get("command_id") == command_id:
                return file.with_name(file.name.replace(".outcome.json", ".json"))
        raise NotFoundError(f"Job {self.job_id} has no command {command_id}.")


def status_view(job_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a status file in the format of the control port."""
    values = fields.get("values") or {}
    return {
        **values,
        **fields,
        "job_id": job_id,
        "status": fields.get("state"),
        "timestamp": fields.get("at"),
        "global_step": fields.get("step"),
        "values": values,
    }


def _free(folder: Path, command: str, unix_ms: int) -> Path:
    # Two commands in the same millisecond must not overwrite each other.
    while (file := folder / f"{command}_{unix_ms}.json").exists():
        unix_ms += 1
    return file
