"""Reach addresses that a user gave, without reaching what they must not reach.

The host is looked up here, and the connection goes to the very address that was checked; redirects are checked
again. Private ranges need to be allowed, metadata services never are.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx

from tunefleet.client import trust
from tunefleet.client.external.interrupt import Stop, Trace
from tunefleet.client.external.limit import Limit, cut
from tunefleet.errors import ForbiddenError, InputError, UnreachableError

TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
_REDIRECTS: Final = 5
_METADATA: Final = frozenset({"169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"})
_NAT64_LOCAL: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_V4_AT_END: Final = (ipaddress.IPv6Network("64:ff9b::/96"), _NAT64_LOCAL, ipaddress.IPv6Network("::/96"))
"""IPv6 networks in which an address ends with the IPv4 address that it leads to."""
_PORTS: Final = {"http": 80, "https": 443}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Reach:
    """Decides which hosts may be reached, and sends requests to them.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
        who: Which process reaches them, in words: whose settings a refusal names.
    """

    def __init__(self, allowed: Sequence[str] = (), *, who: str = "worker") -> None:
        self._who = who
        self._hosts = {name.lower() for name in allowed}
        self._networks = list(_networks(allowed))

    @contextmanager
    def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        limit: Limit | None = None,
    ) -> Iterator[httpx.Response]:
        """Open an answer, redirects followed and checked; its body is not read.

        Args:
            url: An http or https address.
            headers: Sent along; credentials only as long as the host stays the same.
            timeout: Of the network: how long it may be silent.
            limit: How long it may take whatever it sends, redirects and all; whoever reads much renews it. By default
                so long as the network may be silent, for the whole answer.

        Raises:
            ForbiddenError: If the address, or one that it leads to, may not be reached.
            UnreachableError: If the host does not answer, or does not do so in time.
            InputError: If it leads nowhere.
            Stopped: If nobody wants the answer any more.
        """
        first, sent = origin_of(url), dict(headers or {})
        limit = limit or Limit(silence_s(timeout))
        with _client(timeout) as client, _in_our_words(url, limit), limit.watched() as trace:
            for _ in range(_REDIRECTS):
                response = self._sent(client, self.request(client, "GET", url, headers=sent), trace)
                try:
                    if not response.is_redirect:
                        yield response
                        return
                    url = moved_to(url, response)
                finally:
                    response.close()
                if origin_of(url) != first:
                    sent = {name: value for name, value in sent.items() if name.lower() in {"range", "if-range"}}
        raise UnreachableError(f"{shown(url)} redirects too often.")

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        content: bytes | Iterable[bytes] = b"",
        stop: Stop | None = None,
    ) -> httpx.Response:
        """Send a request and return the answer, its body unread; a redirect is an answer too.

        Args:
            url: An http or https address.
            headers: Sent along; the length of what comes in pieces is among them.
            timeout: Of the network: how long it may be silent. The host has as long to take each piece of the content,
                and to answer after the last one, whatever it sends meanwhile.
            content: What is sent.
            stop: Ends it early.

        Raises:
            ForbiddenError: If the address may not be reached.
            UnreachableError: If the host does not answer, or does not do so in time.
            Stopped: If nobody wants the answer any more.
        """
        sent, seconds = dict(headers or {}), silence_s(timeout)
        if isinstance(content, bytes):
            if content and not any(name.lower() == "content-length" for name in sent):
                sent["Content-Length"] = str(len(content))
            content = [content] if content else []
        limit = Limit(seconds, stop)
        pieces = limit.renewed_by(cut(content), seconds) if content else None
        with _client(timeout) as client, _in_our_words(url, limit), limit.watched() as trace:
            response = self._sent(client, self.request(client, method, url, headers=sent, content=pieces), trace)
            response.close()
            return response

    @staticmethod
    def _sent(client: httpx.Client, request: httpx.Request, trace: Trace) -> httpx.Response:
        request.extensions["trace"] = trace
        return client.send(request, stream=True)

    def request(
        self,
        client: httpx.Client | httpx.AsyncClient,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        **body: Any,
    ) -> httpx.Request:
        """Make the request to the very address that was checked; name and certificate stay those of the host."""
        target = httpx.URL(url).copy_with(host=str(self.check_url(url)))
        parts = urlsplit(url)
        named = {**headers, "Host": parts.netloc.rpartition("@")[2]}
        return client.build_request(
            method, target, headers=named, extensions={"sni_hostname": parts.hostname, **_timeout(client)}, **body
        )

    def check_url(self, url: str) -> Address:
        """Look up the host of an http or https address; returns and raises what `check` does."""
        scheme, host, port = origin_of(url)
        if scheme not in _PORTS or not host:
            raise ForbiddenError(f"{shown(url)} is no http or https address.")
        return self.check(host, port)

    def check(self, host: str, port: int) -> Address:
        """Look a host up and return the address to connect to.

        Raises:
            ForbiddenError: If one of its addresses may not be reached.
            UnreachableError: If it has none.
        """
        found = addresses_of(host, port)
        if not found:
            raise UnreachableError(f"The host {host} has no address.")
        for address in found:
            if str(_end_of(address)) in _METADATA:  # no setting helps
                raise ForbiddenError(f"{host} is {address}, a metadata service of clouds; it is never reached.")
            if not self._may_reach(host, address):
                known = f"{host} is {address}, which" if host.strip("[]") != str(address) else host
                raise ForbiddenError(
                    f"{known} is not a public address.",
                    hint=f"If it is meant, add it to TUNEFLEET_URL_ALLOW of the {self._who}, which reads it when it "
                    f"starts.",
                )
        return found[0]

    def _may_reach(self, host: str, address: Address) -> bool:
        end = _end_of(address)
        if host.lower() in self._hosts or any(each in network for network in self._networks for each in (address, end)):
            return True
        if isinstance(address, ipaddress.IPv6Address) and (address in _NAT64_LOCAL or address.is_site_local):
            return False  # somebody's own network, which not every version of `ipaddress` knows
        return bool(end.is_global and not end.is_multicast)


def moved_to(url: str, response: httpx.Response) -> str:
    """Return where a redirect leads.

    Raises:
        InputError: If it does not say so, or in a way that nobody can follow.
    """
    try:
        found = urljoin(url, response.headers["location"])
        urlsplit(found)
    except (KeyError, ValueError):
        raise InputError(f"{shown(url)} answers {response.status_code} and does not say where to go on.") from None
    return found


def addresses_of(host: str, port: int) -> list[Address]:
    """Return the addresses of a host, as the system knows them now; none if it is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # or no name of a host at all
        return []
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address; of what is none, empty texts and 0."""
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return "", "", 0


def _end_of(address: Address) -> Address:
    """Return where an address leads: of an IPv6 address that stands for an IPv4 address, that one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inside = address.ipv4_mapped or address.sixtofour
    if inside is None and any(address in network for network in _V4_AT_END) and int(address) > 1:
        inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inside or address


def same_server(one: str, other: str) -> bool:
    """Whether two addresses lead to one server: the same port of the same host, whatever they call it."""
    (scheme, host, port), (other_scheme, other_host, other_port) = origin_of(one), origin_of(other)
    if not host or (scheme, port) != (other_scheme, other_port):
        return False
    return host == other_host or bool(set(addresses_of(host, port)) & set(addresses_of(other_host, port)))


def shown(url: str) -> str:
    """Return an address without what may be secret in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "The address"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _client(timeout: httpx.Timeout) -> httpx.Client:
    # No proxy from the environment: it would look the name up again, and connect to what it finds.
    return httpx.Client(timeout=timeout, follow_redirects=False, trust_env=False, verify=trust.context())


def silence_s(timeout: httpx.Timeout) -> float:
    """Return how long a host that says nothing is waited for, to connect and to answer."""
    return (timeout.connect or 0.0) + (timeout.read or 0.0)


def _timeout(client: httpx.Client | httpx.AsyncClient) -> dict[str, Any]:
    # Extensions of a request take the place of the client's, and with them its limits.
    return {"timeout": client.timeout.as_dict()}


@contextmanager
def _in_our_words(url: str, limit: Limit) -> Iterator[None]:
    try:
        yield
        limit.check(shown(url))  # what this end has cut off may read like a whole answer
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        limit.check(shown(url))
        raise UnreachableError(f"{shown(url)} cannot be reached: {error}.", detail=repr(error)) from error


def _networks(allowed: Iterable[str]) -> Iterator[Any]:
    for name in allowed:
        try:
            yield ipaddress.ip_network(name, strict=False)
        except ValueError:
            continue  # a host's name
