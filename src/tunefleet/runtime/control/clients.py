"""Clients of a running job: over the trainer's control port, or through files that the trainer polls for."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunefleet.errors import AuthError, ConflictError, ForbiddenError, InputError, NotFoundError, UnreachableError
from tunefleet.runtime.control.discovery import LocalJob
from tunefleet.schemas.control import CommandFile, CommandState, ControlReply, ControlRequest, Endpoint
from tunefleet.trainer_control.files import read_json, write_json

_TIMEOUT_S = 5.0
_KINDS = {
    400: InputError,
    401: AuthError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InputError,
    415: InputError,
}


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """A control port that is not listed in an endpoint file of this machine."""

    host: str
    port: int
    token: str | None = None

    @classmethod
    def parse(cls, text: str, token: str | None = None) -> RemoteHost:
        """Parse `HOST:PORT`."""
        host, colon, port = text.strip().removeprefix("http://").rstrip("/").rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise InputError(f"{text!r} is not HOST:PORT.", hint="Use for example gpu-box:41235 or [::1]:41235.")
        return cls(host.strip("[]"), int(port), token)

    def jobs(self) -> list[dict[str, Any]]:
        """Return the endpoints of the other machine, with `alive` as determined there."""
        found = _call(self, "GET", "/jobs").get("jobs")
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


class ControlClient:
    """Controls one job."""

    def __init__(self, endpoint: Endpoint | RemoteHost, job_id: str | None = None) -> None:
        if isinstance(endpoint, Endpoint):
            self.job_id = endpoint.job_id
            self.host = RemoteHost("127.0.0.1", endpoint.port, endpoint.token)
        else:
            self.job_id = job_id or ""
            self.host = endpoint

    def send(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Send a command; the reply confirms that it was accepted, `state` returns its outcome.

        Raises:
            ConflictError: If the job no longer accepts commands.
            UnreachableError: If the job does not respond.
        """
        body = ControlRequest(command=command, data=data or {}, command_id=command_id)
        return ControlReply.model_validate(self._call("POST", "control", body.model_dump()))

    def state(self, command_id: str) -> CommandState:
        """Return the state of a command.

        Raises:
            NotFoundError: If the job has no such command.
            UnreachableError: If the job does not respond.
        """
        return CommandState.model_validate(self._call("GET", f"commands/{command_id}"))

    def status(self) -> dict[str, Any]:
        """Return the job's current status, which may be newer than its `status.json`."""
        return self._call("GET", "status")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return _call(self.host, method, f"/jobs/{self.job_id}/{path}", body, who=f"Job {self.job_id}")


def _call(
    host: RemoteHost, method: str, path: str, body: dict[str, Any] | None = None, *, who: str = "The control port"
) -> dict[str, Any]:
    # The port rejects foreign Host headers as a protection against DNS rebinding.
    headers = {"Content-Type": "application/json", "Host": "localhost"}
    if host.token:
        headers["Authorization"] = f"Bearer {host.token}"
    connection = http.client.HTTPConnection(host.host, host.port, timeout=_TIMEOUT_S)
    try:
        payload = json.dumps(body) if body is not None else None
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UnreachableError(
            f"{who} does not respond on {host.host}:{host.port}.",
            hint="List running jobs with `tunefleet control list`.",
            detail=str(error),
        ) from error
    finally:
        connection.close()
    return _checked(response.status, answer)


def _checked(status: int, answer: Any) -> dict[str, Any]:
    if status == 200 and isinstance(answer, dict):
        return answer
    message = answer.get("error") if isinstance(answer, dict) else None
    kind = _KINDS.get(status, UnreachableError)
    text = str(message or f"status {status}").rstrip(".")
    hint = "Pass the token of the job's endpoint.json with --token." if kind is AuthError else None
    raise kind(f"The job rejected the request: {text}.", hint=hint)


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
