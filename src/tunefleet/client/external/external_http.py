"""Ask an address that a document names; who may be reached is `reach`'s business.

The answer is read up to a limit and within a time, whatever the other side sends. Messages name the host and nothing
else of the address: the rest may be secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tunefleet.client.external.interrupt import Stop, Trace
from tunefleet.client.external.limit import Limit
from tunefleet.client.external.ssrf_guard import Reach, moved_to, origin_of
from tunefleet.client.external.webhook import later_s
from tunefleet.errors import ForbiddenError, InputError, UnreachableError

__all__ = ["Question", "Reply", "ask"]

_REDIRECTS: Final = 5
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE_S: Final = 120.0
_CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Question:
    """A request.

    Args:
        url: An http or https address.
        headers: Sent along; to another host than that of the address none is.
        params: Added to the address.
        body: `json`, `content` or `data`, as httpx takes them; at most one.
        timeout_s: Seconds in which the whole answer must be there.
        verify_tls: Check the certificate.
        follow_redirects: Follow redirections to addresses that may be reached.
        max_body_bytes: Longer answers are cut.
        retries: Further tries of a request that found nobody, or somebody without time.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    verify_tls: bool = True
    follow_redirects: bool = True
    max_body_bytes: int = 200_000
    retries: int = 0

    @property
    def host(self) -> str:
        """Who is asked."""
        return urlsplit(self.url).hostname or "the address"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Args:
        headers: With names in small letters.
        text: The body, as far as it was read.
        truncated: Whether there was more.
        later_s: In how many seconds the host wants to be asked again, if it said so.
    """

    host: str
    status: int
    headers: dict[str, str]
    text: str
    truncated: bool
    later_s: float | None = None

    @property
    def transient(self) -> bool:
        """Whether another try may be answered otherwise."""
        return self.status in _TRANSIENT


class _Later(Exception):
    """An answer that a further try may better."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def ask(question: Question, *, allowed: Sequence[str] = (), stop: Stop | None = None) -> Reply:
    """Ask, again if need be and allowed; returns the last answer, whatever its status.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
        stop: Ends it, between two tries as well as while an answer is waited for.

    Raises:
        InputError: If the address, or one that it leads to, may not be reached, or is none.
        UnreachableError: If the host does not answer in time.
        Stopped: If `stop` was set meanwhile.
    """
    reach, stop = Reach(allowed), stop or Stop()
    tries = Retrying(
        retry=retry_if_exception_type((UnreachableError, _Later)),
        wait=_pause,
        stop=stop_after_attempt(1 + question.retries),
        sleep=stop.pause,
        reraise=True,
    )
    try:
        return tries(_once, reach, question, stop)
    except _Later as later:
        return later.reply
    except ForbiddenError as error:
        raise InputError(error.message, hint=error.hint) from error


_BACKOFF = wait_random_exponential(multiplier=1.0, max=30.0)


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.reply.later_s if isinstance(error, _Later) else None
    return min(asked, _LONGEST_PAUSE_S) if asked is not None else float(_BACKOFF(state))


def _once(reach: Reach, question: Question, stop: Stop) -> Reply:
    stop.check()
    limit = Limit(question.timeout_s, stop)
    timeout = httpx.Timeout(question.timeout_s, connect=min(_CONNECT_S, question.timeout_s))
    try:
        # No proxy from the environment: it would look the name up again, and connect to what it finds. A connection is
        # not shared: it was opened in the name of one host, and another may have the same address.
        with (
            httpx.Client(timeout=timeout, trust_env=False, verify=question.verify_tls) as client,
            limit.watched() as trace,
        ):
            reply = _followed(client, reach, question, trace)
            limit.check(question.host)  # what this end has cut off may read like a whole answer
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        limit.check(question.host)  # it was this end that closed the connection
        said = str(error).strip().rstrip(".")
        why = said if said and "//" not in said else type(error).__name__
        raise UnreachableError(f"{question.host} cannot be reached: {why}.", detail=repr(error)) from error
    if reply.transient:
        raise _Later(reply)
    return reply


def _followed(client: httpx.Client, reach: Reach, question: Question, trace: Trace) -> Reply:
    here = replace(question, url=_with_params(question))
    for _ in range(_REDIRECTS + 1):
        headers = {"Accept-Encoding": "identity", **here.headers}
        request = reach.request(client, here.method, here.url, headers=headers, **here.body)
        request.extensions["trace"] = trace
        response = client.send(request, stream=True)
        try:
            if not (here.follow_redirects and response.has_redirect_location):
                return _read(here, response)
            here = _next(here, response)
        finally:
            response.close()
    raise InputError(f"{question.host} redirects too often.")


def _with_params(question: Question) -> str:
    if not question.params:
        return question.url
    return str(httpx.URL(question.url).copy_merge_params(dict(question.params)))


def _next(here: Question, response: httpx.Response) -> Question:
    url = moved_to(here.url, response)
    same = origin_of(url) == origin_of(here.url)
    keeps = response.status_code in (307, 308) or here.method in ("GET", "HEAD")
    if keeps and here.body and not same:
        raise InputError(
            f"{here.host} redirects the request to {urlsplit(url).hostname}, which its body is not sent to.",
            hint="Name that address itself.",
        )
    moved = replace(here, url=url, headers=here.headers if same else {})
    return moved if keeps else replace(moved, method="GET", body={})


def _read(question: Question, response: httpx.Response) -> Reply:
    data = bytearray()
    for piece in response.iter_bytes(16 << 10):
        data += piece
        if len(data) > question.max_body_bytes:
            break
    kept = bytes(data[: question.max_body_bytes])
    return Reply(
        host=question.host,
        status=response.status_code,
        headers={name.lower(): value for name, value in response.headers.items()},
        text=kept.decode(_encoding(response), errors="replace"),
        truncated=len(data) > question.max_body_bytes,
        later_s=later_s(response.headers),
    )


def _encoding(response: httpx.Response) -> str:
    name = response.charset_encoding or "utf-8"
    try:
        "".encode(name)
    except LookupError:
        return "utf-8"
    return name
