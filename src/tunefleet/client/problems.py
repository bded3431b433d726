"""Maps an error response to the exception that the server raised.

The mirror of the server's mapping: the last segment of the problem's type is the exception's `code`.
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
    """A proxy in front of the server refuses a body that the server would accept."""


def _tree(root: type[TunefleetError]) -> dict[str, type[TunefleetError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        # Only the shared error classes: constructors of others may differ, and the mapping must not depend on
        # which modules were imported.
        if child.__module__ != TunefleetError.__module__:
            continue
        for code, kind in _tree(child).items():
            found.setdefault(code, kind)
    return found


def exception_of(response: httpx.Response, body: bytes) -> TunefleetError:
    """Return the exception for an error response.

    Args:
        response: The response; its body may have been streamed, so it is passed separately.
        body: The response body.
    """
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return _not_tunefleet(response)
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
    retry_after = response.headers.get("Retry-After", "")
    return int(retry_after) if retry_after.isascii() and retry_after.isdigit() else 1


def _without_hint(problem: Problem) -> str:
    return problem.detail.removesuffix(problem.hint or "").rstrip() or problem.title


def _spec_error(problem: Problem) -> SpecError:
    views = [FaultView.model_validate(fault) for fault in problem.faults]
    faults = [Fault(view.path, view.message, view.line, view.column, view.hint) for view in views]
    return SpecError(faults or [Fault("", problem.detail)])


def _not_tunefleet(response: httpx.Response) -> TunefleetError:
    url = response.request.url.copy_with(query=None, userinfo=None)
    if response.status_code == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
        return trust.refused_by_proxy(str(url), "407")
    if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return TooLargeForProxy(
            f"A proxy in front of {url} rejects bodies of this size (413).",
            hint="Allow bodies of any size; in nginx, set `client_max_body_size 0;`.",
        )
    return UnreachableError(
        f"{url} responded with {response.status_code} {response.reason_phrase}, but not in Tunefleet's format.",
        hint="Check that the URL belongs to a Tunefleet server.",
    )
