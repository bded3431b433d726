"""Downloads a file from the server's object store, with the signed link in the server's response.

The store is another host: it gets no key of ours except the link's own signature, and no message contains the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from tunefleet.client import trust
from tunefleet.client.call import Sink
from tunefleet.errors import UnreachableError

_PASSED_ON: Final = frozenset({"range", "accept-encoding"})
_STATUSES: Final = frozenset({302, 307})
_MAX_REDIRECTS: Final = 3


def link_of(response: httpx.Response) -> httpx.URL | None:
    """Return the link in a response; `None` if the response contains the file itself.

    Raises:
        UnreachableError: If the link is not an HTTP(S) URL.
    """
    if response.status_code not in _STATUSES or "location" not in response.headers:
        return None
    link = response.url.join(response.headers["location"])
    if link.scheme not in {"http", "https"} or not link.host:
        raise UnreachableError("The server sent an invalid download link.", hint="Check the server's artifact store.")
    return link


def fetch(
    link: httpx.URL,
    sink: Sink,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    network: httpx.BaseTransport | None = None,
) -> None:
    """Download a file, or the range that the headers ask for.

    Args:
        link: The signed link.
        sink: Receives the bytes.
        headers: Headers of the original request; only those of the range are passed on.
        network: Replaces the network in tests.

    Raises:
        UnreachableError: If the store does not respond or rejects the link; a new link may work.
    """
    reaching = options(timeout)
    with (
        _in_our_words(link),
        httpx.Client(**reaching, transport=network) as client,
        client.stream("GET", link, headers=_wanted(headers)) as response,
    ):
        _check(response, headers)
        for piece in response.iter_bytes():
            sink.write(piece)


async def fetch_async(
    link: httpx.URL,
    sink: Sink,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    network: httpx.AsyncBaseTransport | None = None,
) -> None:
    """As `fetch`, on the running event loop."""
    reaching = await asyncio.to_thread(options, timeout)
    with _in_our_words(link):
        async with (
            httpx.AsyncClient(**reaching, transport=network) as client,
            client.stream("GET", link, headers=_wanted(headers)) as response,
        ):
            _check(response, headers)
            async for piece in response.aiter_bytes():
                await asyncio.to_thread(sink.write, piece)


def options(timeout: httpx.Timeout) -> dict[str, Any]:
    """Return the HTTP client options for a store."""
    return {"timeout": timeout, "verify": trust.context(), "follow_redirects": True, "max_redirects": _MAX_REDIRECTS}


def _wanted(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in _PASSED_ON}


def _check(response: httpx.Response, headers: Mapping[str, str]) -> None:
    host, ranged = response.url.host, any(name.lower() == "range" for name in headers)
    if not response.is_success:
        raise UnreachableError(
            f"The object store {host} responded with status {response.status_code}.",
            hint="Try again. If the error persists, check that the clocks of server and store agree.",
        )
    # A complete file would be appended to the part that is already on disk.
    if ranged and response.status_code != httpx.codes.PARTIAL_CONTENT:
        raise UnreachableError(f"The object store {host} ignored the requested range.")


@contextmanager
def _in_our_words(link: httpx.URL) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise explained(link, error) from error


def explained(link: httpx.URL, error: Exception) -> UnreachableError:
    """Translate an error on the way to a store.

    Args:
        link: The link; only its host appears in the message.
        error: What httpx raised.
    """
    return trust.explained(f"{link.scheme}://{link.host}", error) or UnreachableError(
        f"Connection to the object store {link.host} failed: {type(error).__name__}.",
        hint="This machine must be able to reach that host, which TUNEFLEET_S3_PUBLIC_ENDPOINT of the server sets.",
    )
