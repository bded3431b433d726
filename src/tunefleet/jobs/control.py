"""The client of a trainer's control port; it talks only to the process that wrote the endpoint.

A recycled pid, another boot, another machine that shares the home folder: then there is no endpoint, and no token is
sent anywhere.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunefleet.attach import identity
from tunefleet.attach.files import read_json
from tunefleet.errors import ConflictError, InputError, NotFoundError, UnreachableError
from tunefleet.wire.control import CommandState, ControlReply, Endpoint

_TIMEOUT_S = 5.0


def find_endpoint(endpoints_dir: Path, job_id: str) -> Endpoint | None:
    """Return the endpoint of a live job on this machine, or None if there is none that can be trusted."""
    data = read_json(endpoints_dir / job_id / "endpoint.json")
    if data is None:
        return None
    try:
        endpoint = Endpoint.model_validate(data)
    except ValidationError:
        return None
    same_machine = endpoint.hostname == identity.hostname() and endpoint.boot_id == identity.boot_id()
    started_at = identity.process_started_at(endpoint.pid)
    same_process = started_at is not None and started_at == endpoint.process_started_at
    return endpoint if same_machine and same_process and endpoint.job_id == job_id else None


def withdraw_endpoint(endpoints_dir: Path, job_id: str, job_folder: Path) -> None:
    """Remove what a killed trainer left in the endpoint folder; a live one, or one of another folder, is left alone."""
    folder = endpoints_dir / job_id
    data = read_json(folder / "endpoint.json")
    ours = data is not None and data.get("job_folder") == str(job_folder.resolve())
    if not ours or find_endpoint(endpoints_dir, job_id) is not None:
        return
    for name in ("endpoint.json", "status.json", "job"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody keeps files of their own there
        folder.rmdir()


class ControlClient:
    """Speaks to one job.

    Args:
        endpoint: What `find_endpoint` returned.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def send(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Ask for something; the reply says that it was taken, `state` what became of it.

        Raises:
            ConflictError: If the training takes no commands any more.
            InputError: If there is no such command.
            UnreachableError: If the job does not answer.
        """
        body = {"command": command, "data": data or {}, "command_id": command_id}
        return ControlReply.model_validate(self._call("POST", "control", body))

    def state(self, command_id: str) -> CommandState:
        """Return what became of a command.

        Raises:
            NotFoundError: If the job does not know it.
            UnreachableError: If the job does not answer.
        """
        return CommandState.model_validate(self._call("GET", f"commands/{command_id}"))

    def status(self) -> dict[str, Any]:
        """Return the job's status, with what its `status.json` does not hold yet."""
        return self._call("GET", "status")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        endpoint = self._endpoint
        headers = {"Content-Type": "application/json", "Host": "localhost"}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=_TIMEOUT_S)
        try:
            payload = json.dumps(body) if body is not None else None
            connection.request(method, f"/jobs/{endpoint.job_id}/{path}", payload, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"Job {endpoint.job_id} does not answer on its control port.", detail=str(error)
            ) from error
        finally:
            connection.close()
        return _checked(response.status, answer)


def _checked(status: int, answer: Any) -> dict[str, Any]:
    if status == 200 and isinstance(answer, dict):
        return answer
    message = answer.get("error") if isinstance(answer, dict) else None
    kind = {400: InputError, 404: NotFoundError, 409: ConflictError}.get(status, UnreachableError)
    raise kind(f"The job refused: {message or f'status {status}'}.")
