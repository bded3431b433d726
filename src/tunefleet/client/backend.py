"""The backend protocol of the agent: reports of one job with its token, and polling for jobs with an API key.

Any backend that implements the documented routes works; extensions that only our server has are optional. Calls fail
fast: callers retry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from pydantic import ValidationError

import tunefleet
from tunefleet.artifacts import is_archive, unpack
from tunefleet.client import trust
from tunefleet.client.attempt import AttemptClient
from tunefleet.errors import AuthError, ConflictError, InputError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.schemas.base import Message
from tunefleet.schemas.training_protocol.reports import LogLines
from tunefleet.schemas.training_protocol.training import (
    ClaimReply,
    Heartbeat,
    HeartbeatReply,
    PollReply,
    StatusPatch,
    TrainingMetrics,
)
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0)
_TRANSIENT: Final = frozenset({408, 425, 429})
_AWAY: Final = frozenset({502, 503, 504})
"""Statuses with which a proxy reports that the backend is down."""
_MAX_WORDS: Final = 300


class BackendBusy(UnreachableError):
    """A proxy or the backend cannot serve this request now; other requests may succeed."""


class BackendFault(UnreachableError):
    """The backend responds with an error: it has a problem of its own, or cannot store the payload."""


class JobClient:
    """Reports the state of one job.

    Args:
        token: The job's token.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._http = _client(self.url, token)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def metrics(self, job_id: str, point: TrainingMetrics) -> None:
        """Report one point of the series.

        Raises:
            UnreachableError: If the backend does not respond, or cannot accept it now.
            AuthError: If the token is invalid.
            InputError: If the backend rejects it permanently.
        """
        self._send("PUT", f"/api/training/local/{job_id}/metrics", point.model_dump(mode="json", exclude_none=True))

    def metrics_batch(self, job_id: str, points: Sequence[TrainingMetrics]) -> None:
        """Report points in one request; raises as `metrics`, and `NotFoundError` if the backend has no batch route."""
        rows = [point.model_dump(mode="json", exclude_none=True) for point in points]
        self._send("POST", "/api/training/local/metrics", {"job_id": job_id, "metrics": rows})

    def status(self, job_id: str, patch: StatusPatch) -> None:
        """Report the status of the job; raises as `metrics` does."""
        self._send("PATCH", f"/api/training/local/{job_id}/status", patch.model_dump(mode="json", exclude_none=True))

    def logs(self, job_id: str, lines: Sequence[str], offset: int) -> None:
        """Report log lines; `offset` is the number of the first. Raises as `metrics` does."""
        body = LogLines(logs=list(lines), offset=offset)
        self._send("POST", f"/api/training/local/{job_id}/logs", body.model_dump(mode="json"))

    def is_there(self, job_id: str, offset: int) -> bool:
        """Return whether the backend responds to this token: accepts or rejects an empty log or metrics report."""
        return any(answer is not None for answer in self._answers(job_id, offset))

    def takes_token(self, job_id: str, offset: int) -> bool:
        """Return whether the backend accepts the token on one of these routes; it may have no batch route."""
        return any(answer not in {None, "not found"} for answer in self._answers(job_id, offset))

    def _answers(self, job_id: str, offset: int) -> Iterator[str | None]:
        for ask in (partial(self.logs, job_id, [], offset), partial(self.metrics_batch, job_id, [])):
            try:
                ask()
            except (UnreachableError, AuthError):
                yield None
            except NotFoundError:
                yield "not found"
            except TunefleetError:
                yield "refused"
            else:
                yield "taken"

    def predictions(self, job_id: str, predictions: Sequence[dict[str, Any]]) -> None:
        """Report sample predictions; raises as `metrics` does."""
        self._send("POST", "/api/training/local/predictions", {"job_id": job_id, "predictions": list(predictions)})

    def send(self, what: str, job_id: str, body: Any) -> None:
        """Report a prepared body of `metrics`, `predictions` or `logs`; raises as `metrics` does."""
        match what:
            case "metrics":
                self._send("PUT", f"/api/training/local/{job_id}/metrics", body)
            case "predictions":
                self.predictions(job_id, body)
            case _:
                self._send("POST", f"/api/training/local/{job_id}/logs", body)

    def fetch_input(self, ref: dict[str, str], folder: Path) -> Path:
        """Download an artifact that a job needs from our server; a complete one is not downloaded again.

        Args:
            ref: `digest`, and `name` for messages.
            folder: Folder of the inputs.

        Returns:
            The file or folder; for an archive, its unpacked content.
        """
        digest = ref["digest"]
        complete = folder / digest
        if not complete.exists():
            part = folder / f"{digest}.part"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.mkdir(exist_ok=True)
            with AttemptClient(self.url, self._token) as attempt:
                inner = attempt.fetch_artifact(digest, part).relative_to(part)
            if inner != Path() and is_archive(part / inner):
                unpack(part / inner, part / "unpacked")
                (part / inner).unlink()
            # The rename marks the download as complete: a process killed before it leaves only the `.part` folder,
            # which the next call continues.
            part.replace(complete)
        entries = list(complete.iterdir())
        unpacked = complete / "unpacked"
        if unpacked.is_dir():
            return unpacked
        return entries[0] if len(entries) == 1 and entries[0].is_file() else complete

    def deliver(self, task_id: str, outputs: Sequence[tuple[str, str, Path]]) -> None:
        """Upload the job's outputs to our server: name, kind and path of each."""
        with AttemptClient(self.url, self._token) as attempt:
            for name, kind, path in outputs:
                attempt.push_artifact(task_id, name, kind, path)

    def _send(self, method: str, path: str, body: dict[str, Any]) -> None:
        _call(self._http, method, path, body)


class AgentClient:
    """Polls a backend for jobs.

    Args:
        headers: Further identification of the agent: hostname, platform.
    """

    def __init__(self, url: str, key: str, agent_id: str, headers: dict[str, str]) -> None:
        self._http = _client(url, key)
        self._http.headers.update({"X-Agent-ID": agent_id, "X-Agent-Version": tunefleet.__version__, **headers})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def poll(self, wait_s: float, *, want: int) -> PollReply:
        """Poll for a job and for commands.

        Args:
            wait_s: How long our server may hold the request; other backends ignore it.
            want: How many jobs the agent can take.
        """
        headers = {"X-Poll-Wait": f"{wait_s:g}", "X-Agent-Want": str(want)}
        timeout = httpx.Timeout(30.0 + wait_s, connect=10.0)
        answer = _call(self._http, "GET", "/api/training/agent/poll", None, headers=headers, timeout=timeout)
        return _read(PollReply, answer)

    def claim(self, job_id: str) -> ClaimReply:
        """Claim a job.

        Raises:
            ConflictError: If another agent has it.
        """
        return _read(ClaimReply, _call(self._http, "POST", f"/api/training/agent/claim/{job_id}", {}))

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        """Report the jobs that this agent holds.

        Raises:
            NotFoundError: If the backend has no heartbeats: claims then have no lease.
        """
        body = beat.model_dump(mode="json", exclude_none=True)
        return _read(HeartbeatReply, _call(self._http, "POST", "/api/training/agent/heartbeat", body))


def _client(url: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}", "User-Agent": f"tunefleet/{tunefleet.__version__}"}
    return httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT, **trust.options(url))


def _call(http: httpx.Client, method: str, path: str, body: dict[str, Any] | None, **options: Any) -> Any:
    try:
        response = http.request(method, path, json=body, **options)
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.DecodingError) as error:
        raise BackendBusy(
            f"{http.base_url} closed the connection during {method} {path}.", detail=repr(error)
        ) from error
    except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
        raise BackendBusy(f"{http.base_url} did not respond to {method} {path} in time.", detail=repr(error)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        silent = UnreachableError(f"{http.base_url} does not respond.", detail=repr(error))
        raise trust.explained(str(http.base_url), error) or silent from error
    if response.is_success:
        try:
            return response.json() if response.content else {}
        except (ValueError, RecursionError) as error:
            raise BackendFault(f"{http.base_url} did not return JSON for {path}.") from error
    raise _refusal(response, f"{method} {path}")


def _refusal(response: httpx.Response, what: str) -> TunefleetError:
    status, words = response.status_code, response.text[:_MAX_WORDS].strip()
    message = f"The backend responded to {what} with {status}{f': {words}' if words else ''}"
    # A proxy's 502 to 504 means that the backend is down; any other 5xx comes from the backend and may repeat forever.
    if status >= 500 and status not in _AWAY:
        return BackendFault(message)
    if status >= 500 or status in _TRANSIENT or status < 400:
        return BackendBusy(message)
    kinds: dict[int, type[TunefleetError]] = {401: AuthError, 404: NotFoundError, 409: ConflictError}
    return kinds.get(status, InputError)(message)


def _read(model: type[M], answer: Any) -> M:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise UnreachableError(
            f"The backend's response is not a valid {model.__name__} ({summary(error)}).", detail=str(error)
        ) from error
