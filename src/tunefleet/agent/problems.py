"""From an error to the document's answer: a status and `{"detail": …}`."""

from __future__ import annotations

import logging
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from tunefleet.errors import SpecError, TunefleetError

log = logging.getLogger(__name__)

_STATUSES: Final = {
    "spec_invalid": 422,
    "input_invalid": 422,
    "data_invalid": 422,
    "model_invalid": 422,
    "artifact_invalid": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "too_large": 413,
    "unreachable": 503,
    "machine": 507,
}


class NotNow(TunefleetError):
    """The job is unknown, or in a state that does not allow the request: the document answers both with 400."""

    code = "not_now"


def install(app: FastAPI) -> None:
    """Make every failure of the app an answer with a `detail`."""

    @app.exception_handler(TunefleetError)
    async def ours(_: Request, error: TunefleetError) -> JSONResponse:
        status = 400 if isinstance(error, NotNow) else _STATUSES.get(error.code, 500)
        if status >= 500 or error.detail:
            log.warning("%s: %s (%s)", error.code, error.message, error.detail or "no detail")
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return JSONResponse({"detail": _detail(error)}, status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not sent back: it holds tokens, and may be what no JSON can hold.
        return JSONResponse(
            {"detail": [{key: each[key] for key in ("loc", "msg", "type")} for each in error.errors()]}, 422
        )

    @app.exception_handler(RecursionError)
    async def too_deep(_: Request, __: RecursionError) -> JSONResponse:
        return JSONResponse({"detail": "The request is nested too deeply."}, 422)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> JSONResponse:
        # Starlette raises the exception again after this answer, so uvicorn logs its traceback.
        log.error("The agent failed at %s %s.", request.method, request.url.path)
        return JSONResponse({"detail": "The agent failed at this request; its log has the traceback."}, 500)


def _detail(error: TunefleetError) -> object:
    """Return a sentence; for a body with faults a list of them, in the framework's own shape."""
    if not isinstance(error, SpecError):
        return str(error)
    return [
        {
            "loc": ["body", *fault.path.split(".")],
            "msg": f"{fault.message} ({fault.hint})" if fault.hint else fault.message,
            "type": "value_error",
        }
        for fault in error.faults
    ]
