"""Turn an answer that is not a success into the exception that the server raised.

The translator is the mirror of the server's: the last part of the problem's type is the exception's `code`.
"""

from __future__ import annotations

import re

import httpx
from pydantic import ValidationError

from tunefleet.client import trust
from tunefleet.errors import (
    AuthError,
    ConflictError,
    Fault,
    ForbiddenError,
    InputError,
    NotFoundError,
    OffsetConflict,
    SpecError,
    TooLargeError,
    TooManyError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.schemas.api import FaultView, Problem

_BY_STATUS: dict[int, type[TunefleetError]] = {
    400: InputError,
    401: AuthError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: TooLargeError,
    422: InputError,
    429: UnreachableError,
    502: UnreachableError,
    503: UnreachableError,
    504: UnreachableError,
}


class TooLargeForProxy(TooLargeError):
    """What stands before the server refuses a body that the server would take."""


def _tree(root: type[TunefleetError]) -> dict[str, type[TunefleetError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        # Only the common ones: what a program raises among its own need not be built from a sentence and a hint,
        # and whether its module was imported must not decide what a client is told.
        if child.__module__ != TunefleetError.__module__:
            continue
        for code, kind in _tree(child).items():
            found.setdefault(code, kind)
    return found


def exception_of(response: httpx.Response, body: bytes) -> TunefleetError:
    """Return the exception that an unsuccessful answer stands for.

    Args:
        response: The answer; its body may have been streamed, so it is given apart.
        body: The answer's body.
    """
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return _foreign(response)
    code = re.split(r"[/:#]", problem.type)[-1]
    kind = _tree(TunefleetError).get(code) or _BY_STATUS.get(response.status_code, TunefleetError)
    if issubclass(kind, SpecError):
        return _spec_error(problem)
    if issubclass(kind, OffsetConflict):
        return OffsetConflict(problem.detail, cursor=problem.cursor or 0)
    if issubclass(kind, TooManyError):
        return TooManyError(_without_hint(problem), hint=problem.hint, retry_after_s=_retry_after_s(response))
    error = kind(_without_hint(problem), hint=problem.hint)
    if isinstance(error, AuthError) and not error.hint:
        error.hint = "Log in with `tunefleet login URL`, or set TUNEFLEET_KEY."
    return error


def _retry_after_s(response: httpx.Response) -> int:
    said = response.headers.get("Retry-After", "")
    return int(said) if said.isascii() and said.isdigit() else 1


def _without_hint(problem: Problem) -> str:
    return problem.detail.removesuffix(problem.hint or "").rstrip() or problem.title


def _spec_error(problem: Problem) -> SpecError:
    views = [FaultView.model_validate(fault) for fault in problem.faults]
    faults = [Fault(view.path, view.message, view.line, view.column, view.hint) for view in views]
    return SpecError(faults or [Fault("", problem.detail)])


def _foreign(response: httpx.Response) -> TunefleetError:
    url = response.request.url.copy_with(query=None, userinfo=None)
    if response.status_code == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
        return trust.refused_by_proxy(str(url), "407")
    if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return TooLargeForProxy(
            f"A proxy before {url} takes no body of this size (413).",
            hint="Let it take bodies of any size; of nginx, that is `client_max_body_size 0;`.",
        )
    return UnreachableError(
        f"{url} answered {response.status_code} {response.reason_phrase}, and not in Tunefleet's words.",
        hint="Check that the URL is that of a Tunefleet server.",
    )
