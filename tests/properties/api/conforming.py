"""Ask a running server what its OpenAPI document says can be asked, and compare the answers with the document."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)

CHECKS: Final = [
    not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MAX_HEAD_BYTES: Final = 60 << 10
_OF_ATTEMPT: Final = ("/journal", "/log", "/metrics", "/status", "/logs", "/chat/turns", "/chat/turns/{turn_id}")
_ENDS: Final = ("/cancel", "/token", "/stop", "/drain")
ANSWER_S: Final = 120


@dataclass(frozen=True)
class Asked:
    """A server, and who asks it for what.

    Args:
        url: The server.
        ids: Values of path parameters that name something.
        key: Of who may do everything that a person may.
        token: Of an attempt.
        examples: How many requests that fit, and how many that do not, are made of each operation.
        draw: What chance begins with; the same each time if null.
        ends_at: When no further ones are sent, in seconds of the monotonic clock.
    """

    url: str
    ids: Mapping[str, str]
    key: str
    token: str
    examples: int
    draw: int | None = None
    ends_at: float = float("inf")


@dataclass
class Told:
    """What came of it."""

    sent: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, set[int]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """What is wrong, with the first request that showed it."""


def operations(document: dict[str, Any]) -> list[Any]:
    """Return every operation, those that only read before those that change something, and those that delete last."""
    order = ("get", "head", "put", "patch", "post", "delete")
    found = [each.ok() for each in schemathesis.openapi.from_dict(document).get_all_operations()]
    return sorted(found, key=lambda each: (order.index(each.method), each.path.endswith(_ENDS)))


def ask(asked: Asked, found: Iterable[Any]) -> Told:
    """Ask each operation: plainly for what there is, then by chance for what fits its parameters, and what does not."""
    told = Told()
    for operation in found:
        told.sent[operation.label] = 0
        told.statuses[operation.label] = set()
        for case in _cases(asked, operation):
            if told.sent[operation.label] >= 2 and time.monotonic() > asked.ends_at:
                break
            told.sent[operation.label] += 1
            status, wrong = _answer(asked, case)
            told.statuses[operation.label].add(status)
            for each in wrong:
                told.wrong.setdefault(f"{operation.label}: {each}", case.as_curl_command())
    return told


def _cases(asked: Asked, operation: Any) -> Iterator[Case]:
    names = {parameter.name for parameter in operation.path_parameters}
    known = {name: value for name, value in asked.ids.items() if name in names}
    reads = operation.method == "get"
    harmless = reads or (operation.method != "delete" and not operation.path.endswith(_ENDS))
    if reads:
        yield operation.Case(path_parameters=known, headers={}, cookies={}, query={})
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        yield from drawn(asked, operation, mode, known if harmless else {})


def drawn(asked: Asked, operation: Any, mode: GenerationMode, known: dict[str, str]) -> list[Case]:
    """Make requests of an operation by chance, those that fit its parameters or those that do not."""
    made: list[Case] = []
    limits = settings(
        max_examples=asked.examples, deadline=None, database=None, derandomize=asked.draw is None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    strategy = operation.as_strategy(generation_mode=mode, path_parameters=known or None)
    drawing = given(case=strategy)(lambda case: made.append(case))
    if asked.draw is not None:
        drawing = seed(asked.draw)(drawing)
    with contextlib.suppress(Unsatisfiable):  # some operations have nothing that could be wrong
        limits(drawing)()
    return made


def _answer(asked: Asked, case: Case) -> tuple[int, list[str]]:
    operation = case.operation
    _at_once(case)
    of_attempt = operation.path.endswith(_OF_ATTEMPT) and operation.method not in {"get", "head"}
    headers = {"Authorization": f"Bearer {asked.token if of_attempt else asked.key}"}
    sending = case.as_transport_kwargs(base_url=asked.url, headers=headers)
    with requests.request(**sending, timeout=ANSWER_S, stream=True, allow_redirects=False) as reply:
        if len(reply.request.url or "") > MAX_HEAD_BYTES:
            return reply.status_code, []  # refused before it is a request; tests/security/test_heads has that
        # A stream has no end: that it begins is enough.
        endless = reply.headers.get("Content-Type", "").startswith("text/event-stream")
        body = b"" if endless else reply.content
        fields = {name: [value] for name, value in reply.headers.items()}
        seen = Response(reply.status_code, fields, body, reply.request, 0.0, verify=False, encoding=reply.encoding)
        return reply.status_code, [*_undeclared(case, seen, endless=endless), *_failures(case, seen, endless=endless)]


def _at_once(case: Case) -> None:
    """Let nothing be held for long that would wait for something to happen."""
    for asked in (case.query, case.body):
        if isinstance(asked, dict) and isinstance(asked.get("wait_s"), int | float):
            asked["wait_s"] = min(asked["wait_s"], 0)


def _undeclared(case: Case, seen: Response, *, endless: bool) -> Iterator[str]:
    """Everything but a problem is declared by its number, and with the kind of its body."""
    declared = case.operation.definition.raw["responses"].get(str(seen.status_code))
    if seen.status_code < 400:
        if declared is None:
            yield f"{seen.status_code} is not declared"
        elif (seen.content or endless) and case.method.upper() != "HEAD" and not declared.get("content"):
            yield f"the body of {seen.status_code}, {seen.headers.get('content-type')}, is not declared"
    elif case.method.upper() != "HEAD" and seen.headers.get("content-type") != ["application/problem+json"]:
        yield f"{seen.status_code} is no problem but {seen.headers.get('content-type')}: {seen.content[:100]!r}"


def _failures(case: Case, seen: Response, *, endless: bool) -> list[str]:
    try:
        case.validate_response(seen, checks=CHECKS[:3] if endless else CHECKS)
    except FailureGroup as group:
        return [_line(each) for each in group.exceptions]
    return []


def _line(failure: Failure | BaseException) -> str:
    return " ".join(f"{getattr(failure, 'title', type(failure).__name__)}: {failure}".split())[:600]
