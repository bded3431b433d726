"""Post a short message to an address that a user gave; who may be reached is `reach`'s business."""

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

from tunefleet.client.external.ssrf_guard import Reach
from tunefleet.errors import UnreachableError

_TIMEOUT: Final = httpx.Timeout(15.0, connect=10.0)
_WHOLE_S: Final = 30.0
_REDIRECTS: Final = 3
_MAX_LATER_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver said.

    Args:
        later_s: In how many seconds it wants to be asked again; null if it did not say.
    """

    host: str
    status: int
    later_s: float | None = None

    @property
    def taken(self) -> bool:
        """Whether it took the message."""
        return 200 <= self.status < 300

    @property
    def lasting(self) -> bool:
        """Whether another try would be answered the same."""
        return not self.taken and self.status < 500 and self.status not in {408, 409, 423, 425, 429}


async def post(url: str, body: bytes, headers: Mapping[str, str], *, reach: Reach, executor: Executor) -> Answer:
    """Post a message; a redirect that keeps method and body is followed, if its target may be reached.

    Args:
        url: An http or https address.
        headers: Sent along.
        reach: Who may be reached.
        executor: Looks names up: that may take long, and blocks.

    Raises:
        ForbiddenError: If the address, or one that it leads to, may not be reached.
        UnreachableError: If the receiver does not answer in time; no message of these names more than a host.
    """
    host = urlsplit(url).hostname or "the address"
    try:
        async with asyncio.timeout(_WHOLE_S):
            return await _post(url, body, headers, reach, executor)
    except TimeoutError:
        raise UnreachableError(f"{host} does not answer within {_WHOLE_S:.0f} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise UnreachableError(f"{host} cannot be reached: {_said(error)}.", detail=repr(error)) from error


async def _post(url: str, body: bytes, headers: Mapping[str, str], reach: Reach, executor: Executor) -> Answer:
    loop = asyncio.get_running_loop()
    # No proxy from the environment: it would look the name up again, and connect to what it finds.
    async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        for _ in range(_REDIRECTS + 1):
            here = url
            ask = partial(reach.request, client, "POST", here, headers=headers, content=body)
            request = await loop.run_in_executor(executor, ask)
            # Nothing of the answer's body is needed, however much there is.
            response = await client.send(request, stream=True)
            await response.aclose()
            if response.status_code not in {307, 308} or "location" not in response.headers:
                break
            url = urljoin(here, response.headers["location"])
        else:
            raise UnreachableError(f"{urlsplit(url).hostname} redirects too often.")
    return Answer(urlsplit(here).hostname or "", response.status_code, later_s(response.headers))


def _said(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    # What is said of an address may have all of it in it.
    return text if text and "//" not in text else type(error).__name__


def later_s(headers: httpx.Headers) -> float | None:
    """Return in how many seconds a host wants to be asked again (`Retry-After`); null if it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.replace(".", "", 1).isdigit():
        return min(float(text), _MAX_LATER_S)
    try:
        sent = parsedate_to_datetime(headers.get("date", ""))
        return min(max(0.0, (parsedate_to_datetime(text) - sent).total_seconds()), _MAX_LATER_S)
    except (ValueError, TypeError):
        return None
