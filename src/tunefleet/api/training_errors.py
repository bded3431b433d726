"""Errors of the training routes: problem details plus the fields that clients of the protocols read.

Agents read `error` and `code`, the upload guide's workers `message`. An invalid body is 400 here, as the protocols
require; a rejected adapter is 422.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from tunefleet.api import problem_details
from tunefleet.api.auth import require_known
from tunefleet.errors import AdapterRefused, InputError, SpecError, TunefleetError

_BAD_REQUEST: Final = 400
_UNPROCESSABLE: Final = (SpecError, AdapterRefused)


class TrainingRoute(APIRoute):
    """A route whose errors carry `error`, `code` and `message` in addition to the problem's own fields."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await _known_first(handler, request)
            except TunefleetError as error:
                return _coded(problem_details.from_error(error), error)
            except RequestValidationError as error:
                return _coded(problem_details.from_validation(error.errors()), None, status=_BAD_REQUEST)

        return handle


async def _known_first(handler: Callable[[Request], Coroutine[Any, Any, Response]], request: Request) -> Response:
    try:
        return await handler(request)
    except (RequestValidationError, HTTPException):
        await require_known(request)
        raise


def _coded(answer: Response, error: TunefleetError | None, *, status: int | None = None) -> Response:
    body: dict[str, Any] = json.loads(bytes(answer.body))
    bad = isinstance(error, InputError) and not isinstance(error, _UNPROCESSABLE)
    number = status or (_BAD_REQUEST if bad else None)
    # Errors with a code of the protocol carry it themselves.
    code = getattr(error, "protocol_code", None) or (error.code if error is not None else "request_invalid").upper()
    message = body["detail"] if error is None else str(error)
    body |= {"error": body["detail"], "code": code, "message": message}
    if number is not None:
        body |= {"status": number, "title": "Bad Request"}
    headers = {name: value for name, value in answer.headers.items() if name.startswith("www-")}
    return Response(json.dumps(body), body["status"], media_type=problem_details.MEDIA_TYPE, headers=headers)
