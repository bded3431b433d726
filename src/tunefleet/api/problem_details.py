"""Maps errors to HTTP responses: RFC 9457 `application/problem+json`.

Errors that the caller can fix carry a hint; internal errors are logged and their details never sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tunefleet.errors import (
    AdapterRefused,
    Fault,
    NotLeadingError,
    OffsetConflict,
    SpecError,
    TooManyError,
    TunefleetError,
    UnavailableError,
)
from tunefleet.schemas.api import PROBLEM_PREFIX, Problem
from tunefleet.schemas.endpoints import openai_error
from tunefleet.validation_errors import faults, summary

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"

# Error code → HTTP status: every code that a response can carry.
STATUSES: Final[dict[str, int]] = {
    "spec_invalid": 422,
    "input_invalid": 422,
    "data_invalid": 422,
    "model_invalid": 422,
    "reference_invalid": 422,
    "adapter_refused": 422,
    "artifact_invalid": 422,
    "request_invalid": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "conflict": 409,
    "illegal_transition": 409,
    "offset_conflict": 409,
    "gone": 410,
    "body_stalled": 408,
    "too_large": 413,
    "unsupported_media_type": 415,
    "over_quota": 507,
    "too_many": 429,
    "range_invalid": 416,
    "error": 500,
    "internal": 500,
    "store_unusable": 503,
    "unreachable": 503,
    "machine": 507,
}

_CODES_OF_STATUS: Final = {
    400: "request_invalid",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}
_MAX_FAULTS: Final = 50
_KEPT_HEADERS: Final = frozenset({"retry-after", "www-authenticate", "allow", "connection"})


def problem(
    code: str,
    detail: str,
    *,
    status: int | None = None,
    hint: str | None = None,
    faults: Iterable[Fault] = (),
    cursor: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response with problem details."""
    number = status or STATUSES[code]
    body = Problem(
        type=PROBLEM_PREFIX + code,
        title=HTTPStatus(number).phrase,
        status=number,
        detail=detail,
        hint=hint,
        faults=tuple(_fault(fault) for fault in faults),
        cursor=cursor,
    )
    return Response(body.model_dump_json(exclude_none=True), number, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def from_error(error: TunefleetError, *, status: int | None = None) -> Response:
    """Translate an error; an unknown code becomes 500."""
    status = status or STATUSES.get(error.code, 500)
    expected = isinstance(error, UnavailableError)  # such as while a model is loading
    if (status >= HTTPStatus.INTERNAL_SERVER_ERROR and not expected) or error.detail:
        log.warning("%s: %s (%s)", error.code, error.message, error.detail or "no detail", exc_info=status == 500)
    return problem(
        error.code if error.code in STATUSES else "error",
        error.message,
        status=status,
        hint=error.hint,
        faults=_faults_of(error),
        cursor=error.cursor if isinstance(error, OffsetConflict) else None,
        headers=_headers_of(error, status),
    )


def _headers_of(error: TunefleetError, status: int) -> Mapping[str, str] | None:
    if isinstance(error, TooManyError | UnavailableError):
        return {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, NotLeadingError):
        return {"Retry-After": "1"}
    return {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None


def _faults_of(error: TunefleetError) -> Iterable[Fault]:
    if isinstance(error, SpecError):
        return error.faults
    if isinstance(error, AdapterRefused) and error.tensor is not None:
        return (Fault(error.tensor, error.message, hint=error.hint),)
    return ()


def from_validation(errors: Iterable[Mapping[str, Any]]) -> Response:
    """Translate pydantic's errors in a body, a query or a path."""
    found = list(errors)
    # Strings are not quoted: a body may contain secrets.
    listed = faults(found, quoted=False)[:_MAX_FAULTS]
    return problem("request_invalid", f"The request is invalid: {summary(found, quoted=False)}.", faults=listed)


async def _half_a_character(_: Request, __: Exception) -> Response:
    # Only a request can contain it: stored text is valid.
    return problem("request_invalid", "A string in the request contains a lone surrogate.", hint="Send valid UTF-8.")


def for_path(path: str, response: Response) -> Response:
    """Return problem details in OpenAI's format, if the path belongs to an endpoint."""
    if not path.startswith("/serve/"):
        return response
    found = Problem.model_validate_json(bytes(response.body))
    body = openai_error(response.status_code, found.detail, found.type.removeprefix(PROBLEM_PREFIX), found.hint)
    kept = {name: value for name, value in response.headers.items() if name in _KEPT_HEADERS}
    return Response(orjson.dumps(body), response.status_code, kept, "application/json")


def install(app: FastAPI, require_known: Callable[[Request], Awaitable[None]]) -> None:
    """Turn every failure of the app into problem details, or into what clients of an endpoint expect."""

    @app.exception_handler(TunefleetError)
    async def ours(request: Request, error: TunefleetError) -> Response:
        return for_path(request.url.path, from_error(error))

    async def to_known(request: Request, answer: Response) -> Response:
        """Return 401 or 403 instead for a caller without a valid key."""
        try:
            await require_known(request)
        except TunefleetError as refusal:
            return from_error(refusal)
        return answer

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> Response:
        return await to_known(request, from_validation(error.errors()))

    @app.exception_handler(orjson.JSONEncodeError)
    async def unstorable(_: Request, error: orjson.JSONEncodeError) -> Response:
        # Only a request can cause this: stored values were written by the same encoder.
        return problem(
            "request_invalid",
            f"The request contains a value that cannot be stored: {error}.",
            hint="Send integers of more than 64 bits as strings.",
        )

    @app.exception_handler(RecursionError)
    async def too_deep(request: Request, _: RecursionError) -> Response:
        response = problem("request_invalid", "The request is nested too deeply.", hint="Send it with fewer levels.")
        return await to_known(request, response)

    app.add_exception_handler(UnicodeEncodeError, _half_a_character)

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        code = _CODES_OF_STATUS.get(error.status_code, "error")
        known = {
            404: f"No route matches {request.url.path}.",
            405: f"{request.url.path} does not support {request.method}.",
        }
        detail = known.get(error.status_code, str(error.detail))
        response = for_path(request.url.path, problem(code, detail, status=error.status_code, headers=error.headers))
        # FastAPI's status for a body that is not text.
        return await to_known(request, response) if error.status_code == HTTPStatus.BAD_REQUEST else response

    @app.exception_handler(ClientDisconnect)
    async def broken(_: Request, __: ClientDisconnect) -> Response:
        # The client never sees this response; it keeps a broken connection from being logged as a server error.
        return problem("request_invalid", "The connection broke before the end of the body.")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> Response:
        # Starlette raises the exception again after this answer, so uvicorn logs its traceback.
        log.error("Internal error in %s %s.", request.method, request.url.path)
        response = problem(
            "internal", "The server encountered an internal error.", hint="See the traceback in the server's log."
        )
        return for_path(request.url.path, response)


def _fault(fault: Fault) -> dict[str, Any]:
    known = {"path": fault.path, "message": fault.message, "line": fault.line, "column": fault.column}
    return known if fault.hint is None else {**known, "hint": fault.hint}
