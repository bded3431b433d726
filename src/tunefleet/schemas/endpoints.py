"""Endpoints: requests of OpenAI clients, relayed over the connections that workers open."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from tunefleet.schemas.base import Message, Name, ProcessBody, Whole

MAX_FRAMES: Final = 1000
"""Maximum number of frames in one message."""
CallId = Annotated[str, Field(max_length=100)]
# Bodies and parts of them, in JSON.
_BASE64: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
EndpointState = Literal["ready", "loading", "queued", "idle", "stopped"]


class RelayedRequest(Message):
    """A POST request for the HTTP server of a job.

    Args:
        path: Path below `/v1/`.
        body: Its JSON body.
    """

    model_config = _BASE64

    id: CallId
    path: str
    body: bytes = b""


class RelayPoll(ProcessBody):
    """A worker's poll for requests.

    Args:
        ready: The job's HTTP server responds.
        models: Ids that a request may name as `model`.
        held: Requests in progress.
        wait_s: How long the server may hold the poll until there is a request, in seconds.
    """

    ready: bool = False
    models: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=1000)
    held: tuple[CallId, ...] = Field(default=(), max_length=10_000)
    wait_s: Annotated[float, Field(ge=0, le=60)] = 0.0


class RelayedRequests(Message):
    """Response to a worker's poll.

    Args:
        gone: Requests whose clients have disconnected.
        end: End the job: the endpoint is idle, or another task has replaced it.
    """

    model_config = _BASE64

    requests: tuple[RelayedRequest, ...] = ()
    gone: tuple[str, ...] = ()
    end: bool = False


class TokenUsage(Message):
    """Tokens of one request."""

    prompt_tokens: Annotated[Whole, Field(ge=0)] = 0
    completion_tokens: Annotated[Whole, Field(ge=0)] = 0


class ResponseFrame(Message):
    """The next part of a response.

    Args:
        status: HTTP status, in the first frame.
        content_type: Its header, in the first frame.
        data: The next bytes of the body.
        end: The response is complete.
        error: Why the response ends early.
        usage: Tokens of the complete response, if it reports them.
    """

    model_config = _BASE64

    id: CallId
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    content_type: Annotated[str, Field(max_length=200, pattern=r"^[\x20-\x7e]*$")] | None = None
    data: bytes = b""
    end: bool = False
    error: Annotated[str, Field(max_length=10_000)] | None = None
    usage: TokenUsage | None = None


class ResponseFrames(ProcessBody):
    """Parts of several responses, in order.

    Args:
        paused: Responses whose next bytes wait until the server has room for them.
    """

    model_config = _BASE64

    frames: tuple[ResponseFrame, ...] = Field(default=(), max_length=MAX_FRAMES)
    paused: tuple[CallId, ...] = Field(default=(), max_length=10_000)


class FramesReceipt(Message):
    """Response to frames.

    Args:
        gone: Requests whose clients have disconnected.
        full: Responses that are not being read fast enough; send their next bytes later.
    """

    gone: tuple[str, ...] = ()
    full: tuple[str, ...] = ()


class EndpointReplica(Message):
    """A task that serves an endpoint.

    Args:
        ready: The model is loaded, and its worker is connected.
        open_requests: Requests in progress.
    """

    task_id: str
    status: str
    ready: bool = False
    worker_id: str | None = None
    open_requests: int = 0


class EndpointView(Message):
    """An endpoint.

    Args:
        url: Base URL for OpenAI clients, below the server's own.
        reason: Why it is not ready.
        models: Ids that a request may name as `model`.
        waiting: Requests that wait for a replica.
        requests: Requests that were answered, since the endpoint exists.
    """

    name: Name
    url: str
    state: EndpointState
    reason: str | None = None
    owner: str
    models: tuple[str, ...] = ()
    replicas: tuple[EndpointReplica, ...] = ()
    waiting: int = 0
    created_at: datetime
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


_ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def openai_error(status: int, message: str, code: str, hint: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    text = message if hint is None else f"{message} {hint}"
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}
