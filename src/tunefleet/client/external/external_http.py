"""Requests to addresses that a user gave, in a workflow file or as a webhook; `ssrf_guard` decides what is allowed.

Size and duration of the response are limited, whatever the other side sends. Messages contain only the host: the rest
of a URL may be secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tunefleet.client.external.interrupt import CancelToken, Trace
from tunefleet.client.external.limit import Limit
from tunefleet.client.external.ssrf_guard import SsrfGuard, moved_to, origin_of
from tunefleet.errors import ForbiddenError, InputError, UnreachableError

__all__ = ["HttpRequest", "HttpResponse", "ask"]
_REDIRECTS: Final = 5
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE_S: Final = 120.0
_CONNECT_S: Final = 10.0
_BACKOFF = wait_random_exponential(multiplier=1.0, max=30.0)
_WEBHOOK_TIMEOUT: Final = httpx.Timeout(15.0, connect=10.0)
_WEBHOOK_WHOLE_S: Final = 30.0
_WEBHOOK_REDIRECTS: Final = 3
_MAX_LATER_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """Response of a receiver.

    Args:
        later_s: Seconds of `Retry-After`; `None` if not sent.
    """

    host: str
    status: int
    later_s: float | None = None

    @property
    def taken(self) -> bool:
        """Whether the receiver accepted the message."""
        return 200 <= self.status < 300

    @property
    def lasting(self) -> bool:
        """Whether a retry would fail, too."""
        return not self.taken and self.status < 500 and self.status not in {408, 409, 423, 425, 429}


async def post_webhook(
    url: str, body: bytes, headers: Mapping[str, str], *, reach: SsrfGuard, executor: Executor
) -> WebhookResponse:
    """Post a message; a redirect that keeps method and body is followed if its target is allowed.

    Args:
        url: An HTTP(S) URL.
        headers: Headers of the request.
        reach: Decides what is allowed.
        executor: Runs DNS lookups, which block and may take long.

    Raises:
        ForbiddenError: If the address, or one that it redirects to, is not allowed.
        UnreachableError: If the receiver does not respond in time; the message contains only the host.
    """
    host = urlsplit(url).hostname or "the URL"
    try:
        async with asyncio.timeout(_WEBHOOK_WHOLE_S):
            return await _post(url, body, headers, reach, executor)
    except TimeoutError:
        raise UnreachableError(f"{host} did not respond within {_WEBHOOK_WHOLE_S:.0f} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise UnreachableError(f"Cannot reach {host}: {_reason(error)}.", detail=repr(error)) from error


async def _post(
    url: str, body: bytes, headers: Mapping[str, str], reach: SsrfGuard, executor: Executor
) -> WebhookResponse:
    loop = asyncio.get_running_loop()
    # No proxy from the environment: it would resolve the name again and connect to an unchecked address.
    async with httpx.AsyncClient(timeout=_WEBHOOK_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        for _ in range(_WEBHOOK_REDIRECTS + 1):
            current = url
            ask = partial(reach.request, client, "POST", current, headers=headers, content=body)
            request = await loop.run_in_executor(executor, ask)
            # The response body is not needed, however long it is.
            response = await client.send(request, stream=True)
            await response.aclose()
            if response.status_code not in {307, 308} or "location" not in response.headers:
                break
            url = urljoin(current, response.headers["location"])
        else:
            raise UnreachableError(f"{urlsplit(url).hostname} has too many redirects.")
    return WebhookResponse(urlsplit(current).hostname or "", response.status_code, later_s(response.headers))


def _reason(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    # The error's text may contain the complete URL, which may be secret.
    return text if text and "//" not in text else type(error).__name__


def later_s(headers: httpx.Headers) -> float | None:
    """Return the seconds of `Retry-After`; `None` without a valid header."""
    text = headers.get("retry-after", "").strip()
    if text.replace(".", "", 1).isdigit():
        return min(float(text), _MAX_LATER_S)
    try:
        sent = parsedate_to_datetime(headers.get("date", ""))
        return min(max(0.0, (parsedate_to_datetime(text) - sent).total_seconds()), _MAX_LATER_S)
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request.

    Args:
        url: An HTTP(S) URL.
        headers: Headers; dropped on a redirect to another host.
        params: Query parameters to add.
        body: `json`, `content` or `data`, as in httpx; at most one.
        timeout_s: Seconds for the complete response.
        verify_tls: Verify the certificate.
        follow_redirects: Follow redirects to allowed addresses.
        max_body_bytes: Longer bodies are truncated.
        retries: Retries after a failed connection or a transient status.
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
        """Host of the request."""
        return urlsplit(self.url).hostname or "the URL"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response.

    Args:
        headers: Headers with lower-case names.
        text: The body, up to the limit.
        truncated: Whether the body was longer.
        later_s: Seconds of `Retry-After`, if sent.
    """

    host: str
    status: int
    headers: dict[str, str]
    text: str
    truncated: bool
    later_s: float | None = None

    @property
    def transient(self) -> bool:
        """Whether a retry may succeed."""
        return self.status in _TRANSIENT


class _Later(Exception):
    """A response after which a retry may succeed."""

    def __init__(self, reply: HttpResponse) -> None:
        super().__init__(reply.status)
        self.reply = reply


def ask(question: HttpRequest, *, allowed: Sequence[str] = (), stop: CancelToken | None = None) -> HttpResponse:
    """Send a request with retries; returns the last response, whatever its status.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
        stop: Cancels it, both between two tries and while waiting for a response.

    Raises:
        InputError: If the address, or one that it redirects to, is invalid or not allowed.
        UnreachableError: If the host does not respond in time.
        Stopped: If `stop` was set.
    """
    reach, stop = SsrfGuard(allowed), stop or CancelToken()
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


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.reply.later_s if isinstance(error, _Later) else None
    return min(asked, _LONGEST_PAUSE_S) if asked is not None else float(_BACKOFF(state))


def _once(reach: SsrfGuard, question: HttpRequest, stop: CancelToken) -> HttpResponse:
    stop.check()
    limit = Limit(question.timeout_s, stop)
    timeout = httpx.Timeout(question.timeout_s, connect=min(_CONNECT_S, question.timeout_s))
    try:
        # No proxy from the environment: it would resolve the name again and connect to an unchecked address.
        # Connections are not shared: one was opened for one host name, and another may have the same address.
        with (
            httpx.Client(timeout=timeout, trust_env=False, verify=question.verify_tls) as client,
            limit.watched() as trace,
        ):
            reply = _followed(client, reach, question, trace)
            limit.check(question.host)  # a connection that we closed may look like a complete response
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        limit.check(question.host)  # we may have closed the connection
        text = str(error).strip().rstrip(".")
        why = text if text and "//" not in text else type(error).__name__
        raise UnreachableError(f"Cannot reach {question.host}: {why}.", detail=repr(error)) from error
    if reply.transient:
        raise _Later(reply)
    return reply


def _followed(client: httpx.Client, reach: SsrfGuard, question: HttpRequest, trace: Trace) -> HttpResponse:
    current = replace(question, url=_with_params(question))
    for _ in range(_REDIRECTS + 1):
        headers = {"Accept-Encoding": "identity", **current.headers}
        request = reach.request(client, current.method, current.url, headers=headers, **current.body)
        request.extensions["trace"] = trace
        response = client.send(request, stream=True)
        try:
            if not (current.follow_redirects and response.has_redirect_location):
                return _read(current, response)
            current = _next(current, response)
        finally:
            response.close()
    raise InputError(f"{question.host} has too many redirects.")


def _with_params(question: HttpRequest) -> str:
    if not question.params:
        return question.url
    return str(httpx.URL(question.url).copy_merge_params(dict(question.params)))


def _next(current: HttpRequest, response: httpx.Response) -> HttpRequest:
    url = moved_to(current.url, response)
    same = origin_of(url) == origin_of(current.url)
    keeps = response.status_code in (307, 308) or current.method in ("GET", "HEAD")
    if keeps and current.body and not same:
        raise InputError(
            f"{current.host} redirects the request to {urlsplit(url).hostname}, and its body is not sent to "
            "another host.",
            hint="Use that URL directly.",
        )
    moved = replace(current, url=url, headers=current.headers if same else {})
    return moved if keeps else replace(moved, method="GET", body={})


def _read(question: HttpRequest, response: httpx.Response) -> HttpResponse:
    data = bytearray()
    for piece in response.iter_bytes(16 << 10):
        data += piece
        if len(data) > question.max_body_bytes:
            break
    kept = bytes(data[: question.max_body_bytes])
    return HttpResponse(
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
