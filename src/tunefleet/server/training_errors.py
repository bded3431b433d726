"""How the training-agent routes say no: a problem like everywhere, with the `error` and `code` that agents read.

A body that cannot be read is 400 here, as the protocol has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from tunefleet.errors import InputError, SpecError, TunefleetError
from tunefleet.server import problems

_BAD_REQUEST: Final = 400


class TrainingRoute(APIRoute):
    """A route whose errors carry `error` and `code` beside the problem's own fields."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except TunefleetError as error:
                return _coded(problems.from_error(error), error)
            except RequestValidationError as error:
                return _coded(problems.from_validation(error.errors()), None, status=_BAD_REQUEST)

        return handle


def _coded(answer: Response, error: TunefleetError | None, *, status: int | None = None) -> Response:
    body: dict[str, Any] = json.loads(bytes(answer.body))
    number = status or (_BAD_REQUEST if isinstance(error, InputError) and not isinstance(error, SpecError) else None)
    # What the protocol has a word of its own for says so itself.
    code = getattr(error, "protocol_code", None) or (error.code if error is not None else "request_invalid").upper()
    body |= {"error": body["detail"], "code": code}
    if number is not None:
        body |= {"status": number, "title": "Bad Request"}
    headers = {name: value for name, value in answer.headers.items() if name.startswith("www-")}
    return Response(json.dumps(body), body["status"], media_type=problems.MEDIA_TYPE, headers=headers)
