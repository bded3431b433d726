"""Posts a short message to an address that a user gave; `ssrf_guard` decides what may be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx

from tunefleet.client.external.ssrf_guard import SsrfGuard
from tunefleet.errors import UnreachableError

_TIMEOUT: Final = httpx.Timeout(15.0, connect=10.0)
_WHOLE_S: Final = 30.0
_REDIRECTS: Final = 3
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


async def post(
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
    host = urlsplit(url).hostname or "the address"
    try:
        async with asyncio.timeout(_WHOLE_S):
            return await _post(url, body, headers, reach, executor)
    except TimeoutError:
        raise UnreachableError(f"{host} did not respond within {_WHOLE_S:.0f} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise UnreachableError(f"Cannot reach {host}: {_reason(error)}.", detail=repr(error)) from error


async def _post(
    url: str, body: bytes, headers: Mapping[str, str], reach: SsrfGuard, executor: Executor
) -> WebhookResponse:
    loop = asyncio.get_running_loop()
    # No proxy from the environment: it would resolve the name again and connect to an unchecked address.
    async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        for _ in range(_REDIRECTS + 1):
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
