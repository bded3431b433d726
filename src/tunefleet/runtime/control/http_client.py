"""Client of a trainer's control port, on this or another host. Standard library only."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from tunefleet.errors import AuthError, ConflictError, ForbiddenError, InputError, NotFoundError, UnreachableError
from tunefleet.schemas.control import CommandState, ControlReply, ControlRequest, Endpoint

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
