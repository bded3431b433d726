"""Steers a job that has no port: a command is a file that the trainer looks for, its outcome a file beside it."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.runtime.control.discovery import FoundJob
from tunefleet.schemas.control import CommandFile, CommandState, ControlReply
from tunefleet.trainer_control.files import read_json, write_json


class FileControlClient:
    """Speaks to one job through its `control/` folder."""

    def __init__(self, job: FoundJob) -> None:
        self.job_id = job.job_id
        self._job = job
        self._asked: dict[str, Path] = {}

    def send(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Write the command; that somebody has read it is only known by its outcome.

        Raises:
            ConflictError: If the job has no folder that commands could be written to.
        """
        folder = self._folder
        folder.mkdir(exist_ok=True, mode=0o700)
        now = time.time()
        name = command_id or f"cmd-{uuid.uuid4().hex[:12]}"
        file = _free(folder, command, int(now * 1000))
        asked = CommandFile(command=command, timestamp=now, data=data or {}, command_id=name)
        write_json(file, asked.model_dump(), mode=0o600)
        self._asked[name] = file
        message = f"Command {command} lies ready for the job to read it"
        return ControlReply(command=command, command_id=name, timestamp=now, message=message)

    def state(self, command_id: str) -> CommandState:
        """Return what became of a command: `pending` until its outcome lies there."""
        file = self._asked.get(command_id) or self._search(command_id)
        found = read_json(file.with_suffix(".outcome.json"))
        if found is None:
            command = file.name.rpartition("_")[0]
            return CommandState(command_id=command_id, command=command, state="pending")
        try:
            return CommandState.model_validate(found)
        except ValidationError as error:
            message = "its outcome cannot be read"
            raise NotFoundError(f"Of command {command_id} {message}.", detail=str(error)) from None

    def status(self) -> dict[str, Any]:
        """Return what the job's status file says, in the shape of the control port."""
        status = self._job.last_status()
        if status is None:
            raise NotFoundError(f"Job {self.job_id} has not written a status yet.")
        return status_view(self.job_id, status.model_dump(mode="json"))

    @property
    def _folder(self) -> Path:
        parent = self._job.folder
        if parent is None or not parent.is_dir():
            raise ConflictError(f"Job {self.job_id} takes no commands any more.")
        return parent / "control"

    def _search(self, command_id: str) -> Path:
        for file in sorted(self._folder.glob("*.json")):
            if (read_json(file) or {}).get("command_id") == command_id:
                return file.with_name(file.name.replace(".outcome.json", ".json"))
        raise NotFoundError(f"Job {self.job_id} knows no command {command_id}.")


def status_view(job_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a status file as the control port shows them."""
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
    # Two commands in one millisecond must not be one file.
    while (file := folder / f"{command}_{unix_ms}.json").exists():
        unix_ms += 1
    return file
