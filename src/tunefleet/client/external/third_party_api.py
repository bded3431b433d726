"""JSON client for a third-party service that takes a key and may charge for requests.

A mutating request is sent once. It is retried only if it certainly did not arrive, that is, if the connection failed. A
read request is retried up to its limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from pydantic import SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base, wait_random_exponential

from tunefleet.client.external.external_http import later_s
from tunefleet.errors import UnreachableError

log = logging.getLogger(__name__)

_CONNECT_S: Final = 10.0
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors before any byte of the request was sent."""
_PASSING: Final = frozenset({408, 425, 429})


class NotArrivedError(UnreachableError):
    """The connection failed: the request certainly did not arrive."""


class UncertainError(UnreachableError):
    """The request was sent, but its outcome is unknown."""


class _Busy(UnreachableError):
    """The service reports that it is temporarily unavailable."""

    def __init__(self, message: str, later: float | None) -> None:
        super().__init__(message)
        self.later = later


@dataclass(frozen=True, slots=True)
class Patience:
    """Retry policy.

    Args:
        first_s: Approximate first pause; doubles with each retry.
        longest_s: Longest pause, unless the service requests a longer one.
    """

    tries: int = 5
    first_s: float = 1.0
    longest_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """Response of a service.

    Args:
        body: JSON body; `None` if the response is not JSON.
    """

    status: int
    body: Any = None

    @property
    def good(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def uncertain(self) -> bool:
        """Whether the request may have taken effect despite this response."""
        return self.status >= 500 or self.status == httpx.codes.REQUEST_TIMEOUT or (self.good and self.body is None)


class Service:
    """One service; the key is sent with every request and appears in no message.

    Args:
        name: Name in messages.
        url: Base URL.
        key: Sent as a bearer token.
        timeout_s: Idle timeout.
        patience: Retry policy of repeatable requests.
    """

    def __init__(
        self, name: str, url: str, key: SecretStr, *, timeout_s: float = 60.0, patience: Patience | None = None
    ) -> None:
        self._name, self._url, self._key = name, url.rstrip("/"), key
        self._timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        self._patience = patience or Patience()
        self._http: httpx.AsyncClient | None = None

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Send a GET request with retries.

        Raises:
            UnreachableError: If the service does not respond, or stays unavailable.
        """
        async for attempt in self._retrying(UnreachableError):
            with attempt:
                reply, later = await self._send("GET", path, params=params)
                if reply.status in _PASSING or reply.status >= 500:
                    raise _Busy(f"{self._name} responded with status {reply.status}.", later)
                return reply
        raise AssertionError("the last try returns or raises")

    async def post(self, path: str, body: Any) -> Reply:
        """Send a POST request once.

        Returns:
            The response, whatever its status; see `Reply.uncertain`.

        Raises:
            NotArrivedError: If the service is unreachable: the request had no effect.
            UncertainError: If there is no response: it may have had an effect.
        """
        return await self._once("POST", path, json=body)

    async def delete(self, path: str) -> Reply:
        """Send a DELETE request once; as `post`."""
        return await self._once("DELETE", path)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _once(self, method: str, path: str, **what: Any) -> Reply:
        async for attempt in self._retrying(NotArrivedError):
            with attempt:
                reply, _ = await self._send(method, path, **what)
                return reply
        raise AssertionError("the last try returns or raises")

    async def _send(self, method: str, path: str, **what: Any) -> tuple[Reply, float | None]:
        if self._http is None:
            # In a thread: the constructor loads the system's certificates, which takes a while.
            self._http = await asyncio.to_thread(httpx.AsyncClient, timeout=self._timeout)
        headers = {"Authorization": f"Bearer {self._key.get_secret_value()}"}
        try:
            response = await self._http.request(method, self._url + path, headers=headers, **what)
        except _NOT_SENT as error:
            raise NotArrivedError(f"Cannot reach {self._name}: {type(error).__name__}.") from error
        except httpx.InvalidURL as error:
            raise NotArrivedError(f"{self._name} has an invalid URL.") from error
        except httpx.HTTPError as error:
            raise UncertainError(f"{self._name} did not respond: {type(error).__name__}.") from error
        return Reply(response.status_code, _json(response)), later_s(response.headers)

    def _retrying(self, error: type[UnreachableError]) -> AsyncRetrying:
        patience = self._patience
        return AsyncRetrying(
            retry=retry_if_exception_type(error),
            stop=stop_after_attempt(patience.tries),
            wait=_Wait(patience),
            before_sleep=_log_pause,
            reraise=True,
        )


def _log_pause(retry_state: RetryCallState) -> None:
    error = retry_state.outcome.exception() if retry_state.outcome is not None else None
    pause_s = 0.0 if retry_state.next_action is None else retry_state.next_action.sleep
    log.info("%s Retrying in %.1f s, attempt %d.", error, pause_s, retry_state.attempt_number + 1)


class _Wait(wait_base):
    """Waits as long as the service requests, else with exponential backoff."""

    def __init__(self, patience: Patience) -> None:
        self._backoff = wait_random_exponential(patience.first_s, patience.longest_s)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        later = error.later if isinstance(error, _Busy) else None
        return self._backoff(retry_state) if later is None else later


def _json(response: httpx.Response) -> Any:
    try:
        # The standard library's parser accepts NaN, which services written in Python send.
        return json.loads(response.content)
    except ValueError:
        return None
