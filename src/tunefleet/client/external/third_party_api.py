"""Speak JSON with a service of somebody else's that asks for a key, and that may charge for what it is asked.

A request that changes something is sent once. It is repeated only where it surely did not arrive: where nobody took
the connection. A request that only reads is repeated as often as its patience allows.
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

from tunefleet.client.external.webhook import later_s
from tunefleet.errors import UnreachableError

log = logging.getLogger(__name__)

_CONNECT_S: Final = 10.0
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Nothing of the request has left this machine."""
_PASSING: Final = frozenset({408, 425, 429})


class NotArrivedError(UnreachableError):
    """Nobody took the connection: the request surely did not arrive."""


class UncertainError(UnreachableError):
    """The request was sent, and there is no answer that says what became of it."""


class _Busy(UnreachableError):
    """The service answers that it cannot answer now."""

    def __init__(self, message: str, later: float | None) -> None:
        super().__init__(message)
        self.later = later


@dataclass(frozen=True, slots=True)
class Patience:
    """How often something is tried.

    Args:
        first_s: About how long the first pause is; each further one is twice as long.
        longest_s: No pause is longer, unless the service asks for one.
    """

    tries: int = 5
    first_s: float = 1.0
    longest_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service answered.

    Args:
        body: JSON; null if the answer was none.
    """

    status: int
    body: Any = None

    @property
    def good(self) -> bool:
        """Whether it did what was asked."""
        return 200 <= self.status < 300

    @property
    def uncertain(self) -> bool:
        """Whether it may have done what was asked although it does not say so."""
        return self.status >= 500 or self.status == httpx.codes.REQUEST_TIMEOUT or (self.good and self.body is None)


class Service:
    """One service; the key goes with every request, and into no message.

    Args:
        name: What messages call it.
        url: Where it is; paths are put behind that.
        key: Sent as a bearer token.
        timeout_s: Silence after which an answer is not waited for.
        patience: For requests that may be repeated.
    """

    def __init__(
        self, name: str, url: str, key: SecretStr, *, timeout_s: float = 60.0, patience: Patience | None = None
    ) -> None:
        self._name, self._url, self._key = name, url.rstrip("/"), key
        self._timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        self._patience = patience or Patience()
        self._http: httpx.AsyncClient | None = None

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Ask for something.

        Raises:
            UnreachableError: If the service does not answer, or only that it cannot.
        """
        async for attempt in self._retrying(UnreachableError):
            with attempt:
                reply, later = await self._send("GET", path, params=params)
                if reply.status in _PASSING or reply.status >= 500:
                    raise _Busy(f"{self._name} answers {reply.status}.", later)
                return reply
        raise AssertionError("the last try returns or raises")

    async def post(self, path: str, body: Any) -> Reply:
        """Ask for something to be done, once.

        Returns:
            The answer, whatever its status; see `Reply.uncertain`.

        Raises:
            NotArrivedError: If the service cannot be reached: nothing was done.
            UncertainError: If there is no answer: it may have been done.
        """
        return await self._once("POST", path, json=body)

    async def delete(self, path: str) -> Reply:
        """Ask for something to be removed; as `post`."""
        return await self._once("DELETE", path)

    async def close(self) -> None:
        """Let go of the connections."""
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
            # Reads the certificates of the machine, which takes a while.
            self._http = await asyncio.to_thread(httpx.AsyncClient, timeout=self._timeout)
        headers = {"Authorization": f"Bearer {self._key.get_secret_value()}"}
        try:
            response = await self._http.request(method, self._url + path, headers=headers, **what)
        except _NOT_SENT as error:
            raise NotArrivedError(f"{self._name} cannot be reached: {type(error).__name__}.") from error
        except httpx.InvalidURL as error:
            raise NotArrivedError(f"{self._name} has an address that is none.") from error
        except httpx.HTTPError as error:
            raise UncertainError(f"{self._name} does not answer: {type(error).__name__}.") from error
        return Reply(response.status_code, _json(response)), later_s(response.headers)

    def _retrying(self, error: type[UnreachableError]) -> AsyncRetrying:
        patience = self._patience
        return AsyncRetrying(
            retry=retry_if_exception_type(error),
            stop=stop_after_attempt(patience.tries),
            wait=_Wait(patience),
            before_sleep=_say_pause,
            reraise=True,
        )


def _say_pause(retry_state: RetryCallState) -> None:
    error = retry_state.outcome.exception() if retry_state.outcome is not None else None
    pause_s = 0.0 if retry_state.next_action is None else retry_state.next_action.sleep
    log.info("%s Asked again in %.1f s, attempt %d.", error, pause_s, retry_state.attempt_number + 1)


class _Wait(wait_base):
    """As long as the service asks for; else longer from time to time."""

    def __init__(self, patience: Patience) -> None:
        self._grows = wait_random_exponential(patience.first_s, patience.longest_s)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        later = error.later if isinstance(error, _Busy) else None
        return self._grows(retry_state) if later is None else later


def _json(response: httpx.Response) -> Any:
    try:
        # Python's own: services that are written in it answer with NaN where they have no number.
        return json.loads(response.content)
    except ValueError:
        return None
