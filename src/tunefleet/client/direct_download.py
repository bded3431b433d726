"""Fetch a file from where the server keeps its files, by the link that it hands out.

That is another host: it gets no key of ours, but for what is in the link itself, and no message names the link.
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
    """Return where an answer says that the file is; null if it has the file itself.

    Raises:
        UnreachableError: If it leads to what is no http or https address.
    """
    if response.status_code not in _STATUSES or "location" not in response.headers:
        return None
    link = response.url.join(response.headers["location"])
    if link.scheme not in {"http", "https"} or not link.host:
        raise UnreachableError("The server names an address for a file that is none.", hint="Check its artifact store.")
    return link


def fetch(
    link: httpx.URL,
    sink: Sink,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    network: httpx.BaseTransport | None = None,
) -> None:
    """Fetch a file, or the range of it that the headers ask for.

    Args:
        link: Where it is.
        sink: Takes its bytes.
        headers: Of the request that led there; those that say which bytes are wanted go along.
        network: Stands for the network in tests.

    Raises:
        UnreachableError: If the host does not answer or refuses the link; a new link may do.
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
    """Do what `fetch` does, on the running event loop."""
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
    """Return how a client reaches a store."""
    return {"timeout": timeout, "verify": trust.context(), "follow_redirects": True, "max_redirects": _MAX_REDIRECTS}


def _wanted(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in _PASSED_ON}


def _check(response: httpx.Response, headers: Mapping[str, str]) -> None:
    host, ranged = response.url.host, any(name.lower() == "range" for name in headers)
    if not response.is_success:
        raise UnreachableError(
            f"{host}, where the server keeps its files, answers {response.status_code}.",
            hint="Try again; if it stays so, compare the clocks of server and store.",
        )
    if ranged and response.status_code != httpx.codes.PARTIAL_CONTENT:
        raise UnreachableError(f"{host}, where the server keeps its files, does not answer with the part asked for.")


@contextmanager
def _in_our_words(link: httpx.URL) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise explained(link, error) from error


def explained(link: httpx.URL, error: Exception) -> UnreachableError:
    """Return in our words what goes wrong on the way to a store.

    Args:
        link: Where it was; only its host is named.
        error: What httpx raised.
    """
    return trust.explained(f"{link.scheme}://{link.host}", error) or UnreachableError(
        f"The connection to {link.host}, where the server keeps its files, breaks: {type(error).__name__}.",
        hint="This machine must reach that host; the server's TUNEFLEET_S3_PUBLIC_ENDPOINT names it.",
    )
