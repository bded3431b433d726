"""Requests to addresses that a user gave, protected against server-side request forgery (SSRF).

The host is resolved here and the connection goes to exactly the address that was checked; redirects are checked again.
Private ranges must be allowed explicitly, metadata services are never reachable.
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
from tunefleet.client.external.interrupt import CancelToken, Trace
from tunefleet.client.external.limit import Limit, cut
from tunefleet.errors import ForbiddenError, InputError, TunefleetError, UnreachableError

TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
_REDIRECTS: Final = 5
_METADATA: Final = frozenset({"169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"})
_NAT64_LOCAL: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_V4_AT_END: Final = (ipaddress.IPv6Network("64:ff9b::/96"), _NAT64_LOCAL, ipaddress.IPv6Network("::/96"))
"""IPv6 networks whose addresses embed an IPv4 address in their last 32 bits."""
_PORTS: Final = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
__all__ = ["Guarded", "failure"]
# Timeout of a request that sets none itself.
_PATIENCE_S: Final = 70.0


class SsrfGuard:
    """Decides which hosts may be reached, and sends requests to them.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
        who: Name of the process whose settings a refusal mentions.
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
        """Open a response, following and checking redirects; its body is not read.

        Args:
            url: An HTTP(S) URL.
            headers: Headers; on a redirect to another host, only those of the range are kept.
            timeout: Idle timeout of the network.
            limit: Total time including redirects, whatever the host sends; renew it while reading a long body. Default:
                the idle timeout, for the complete response.

        Raises:
            ForbiddenError: If the address, or one that it redirects to, is not allowed.
            UnreachableError: If the host does not respond in time.
            InputError: If a redirect has no target.
            Stopped: If it was cancelled.
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
        raise UnreachableError(f"{shown(url)} has too many redirects.")

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        content: bytes | Iterable[bytes] = b"",
        stop: CancelToken | None = None,
    ) -> httpx.Response:
        """Send a request and return the response with its body unread; redirects are returned, not followed.

        Args:
            url: An HTTP(S) URL.
            headers: Headers, including the length of content in pieces.
            timeout: Idle timeout of the network; also the time to accept each piece of the content, and to respond
                after the last one.
            content: The request body.
            stop: Cancels it.

        Raises:
            ForbiddenError: If the address is not allowed.
            UnreachableError: If the host does not respond in time.
            Stopped: If it was cancelled.
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
        """Create a request to the address that was checked, with the host's name for `Host` and the certificate."""
        target = httpx.URL(url).copy_with(host=str(self.check_url(url)))
        parts = urlsplit(url)
        named = {**headers, "Host": parts.netloc.rpartition("@")[2]}
        return client.build_request(
            method, target, headers=named, extensions={"sni_hostname": parts.hostname, **_timeout(client)}, **body
        )

    def check_url(self, url: str) -> Address:
        """Resolve the host of an HTTP(S) URL; returns and raises as `check` does."""
        scheme, host, port = origin_of(url)
        if scheme not in _PORTS or not host:
            raise ForbiddenError(f"{shown(url)} is not an HTTP or HTTPS URL.")
        return self.check(host, port)

    def check(self, host: str, port: int) -> Address:
        """Resolve a host and return the address to connect to.

        Raises:
            ForbiddenError: If one of its addresses is not allowed.
            UnreachableError: If it has none.
        """
        found = addresses_of(host, port)
        if not found:
            raise UnreachableError(f"Cannot resolve the host {host}.")
        # Every address is checked, not only the first: otherwise a name with one public and one private address passes.
        for address in found:
            if str(_end_of(address)) in _METADATA:  # no setting helps
                raise ForbiddenError(f"{host} is {address}, a cloud metadata service; access is never allowed.")
            if not self._may_reach(host, address):
                resolved = f"{host} resolves to {address}, which" if host.strip("[]") != str(address) else host
                raise ForbiddenError(
                    f"{resolved} is not a public address.",
                    hint=f"To allow it, add it to TUNEFLEET_URL_ALLOW of the {self._who} and restart the {self._who}.",
                )
        return found[0]

    def _may_reach(self, host: str, address: Address) -> bool:
        end = _end_of(address)
        if host.lower() in self._hosts or any(each in network for network in self._networks for each in (address, end)):
            return True
        if isinstance(address, ipaddress.IPv6Address) and (address in _NAT64_LOCAL or address.is_site_local):
            return False  # private networks that not every version of `ipaddress` recognizes
        return bool(end.is_global and not end.is_multicast)


def moved_to(url: str, response: httpx.Response) -> str:
    """Return the target of a redirect.

    Raises:
        InputError: If the target is missing or invalid.
    """
    try:
        found = urljoin(url, response.headers["location"])
        urlsplit(found)
    except (KeyError, ValueError):
        raise InputError(
            f"{shown(url)} responded with redirect {response.status_code} without a valid location."
        ) from None
    return found


def addresses_of(host: str, port: int) -> list[Address]:
    """Resolve a host with the system's resolver; empty if it is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: not a valid host name
        return []
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL; empty strings and 0 if it is invalid."""
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return "", "", 0


def _end_of(address: Address) -> Address:
    """Return the address that is finally reached: the embedded IPv4 address of an IPv6 address, if there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inside = address.ipv4_mapped or address.sixtofour
    if inside is None and any(address in network for network in _V4_AT_END) and int(address) > 1:
        inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inside or address


def same_server(one: str, other: str) -> bool:
    """Return whether two URLs refer to the same server: the same port of the same host, under any name."""
    (scheme, host, port), (other_scheme, other_host, other_port) = origin_of(one), origin_of(other)
    if not host or (scheme, port) != (other_scheme, other_port):
        return False
    return host == other_host or bool(set(addresses_of(host, port)) & set(addresses_of(other_host, port)))


def shown(url: str) -> str:
    """Return a URL without credentials, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "The URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _client(timeout: httpx.Timeout) -> httpx.Client:
    # No proxy from the environment: it would resolve the name again and connect to an unchecked address.
    return httpx.Client(timeout=timeout, follow_redirects=False, trust_env=False, verify=trust.context())


def silence_s(timeout: httpx.Timeout) -> float:
    """Return how long to wait for a silent host, to connect and to respond."""
    return (timeout.connect or 0.0) + (timeout.read or 0.0)


def _timeout(client: httpx.Client | httpx.AsyncClient) -> dict[str, Any]:
    # Extensions of a request replace the client's, including its timeouts.
    return {"timeout": client.timeout.as_dict()}


@contextmanager
def _in_our_words(url: str, limit: Limit) -> Iterator[None]:
    try:
        yield
        limit.check(shown(url))  # a connection that we closed may look like a complete response
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        limit.check(shown(url))
        raise UnreachableError(f"Cannot reach {shown(url)}: {error}.", detail=repr(error)) from error


def _networks(allowed: Iterable[str]) -> Iterator[Any]:
    for name in allowed:
        try:
            yield ipaddress.ip_network(name, strict=False)
        except ValueError:
            continue  # a host's name


class Guarded(httpx.BaseTransport):
    """Resolves each request's host, and connects to exactly the address that was checked.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._reach = SsrfGuard(allowed)
        self._inner = httpx.HTTPTransport(retries=0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the complete response.

        Raises:
            ForbiddenError: If the address is not allowed.
            UnreachableError: If the host cannot be resolved, or its response is not complete in time.
            httpx.TransportError: If it does not respond.
        """
        host, patience = request.url.host, request.extensions.get("timeout") or {}
        seconds = sum(patience.get(each) or 0.0 for each in ("connect", "read")) or _PATIENCE_S
        limit = Limit(seconds)
        request.url = request.url.copy_with(host=str(self._reach.check_url(str(request.url))))
        request.stream = _Sent(request.stream, limit, seconds)
        try:
            with limit.watched() as trace:
                request.extensions = {**request.extensions, "sni_hostname": host, "trace": trace}
                answer = self._inner.handle_request(request)
                try:
                    body = b"".join(answer.iter_raw())
                finally:
                    answer.close()
        except httpx.HTTPError:
            limit.check(host)
            raise
        limit.check(host)  # a connection that we closed may look like a complete response
        return httpx.Response(answer.status_code, headers=answer.headers, content=body, extensions=answer.extensions)

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class _Sent(httpx.SyncByteStream):
    """A request body in pieces, each with a time limit."""

    def __init__(self, stream: object, limit: Limit, seconds: float) -> None:
        assert isinstance(stream, Iterable), "the client is no asynchronous one"
        self._whole, self._limit, self._seconds = stream, limit, seconds

    def __iter__(self) -> Iterator[bytes]:
        return self._limit.renewed_by(cut(self._whole), self._seconds)


def failure(error: BaseException, host: str) -> TunefleetError | None:
    """Translate a failed request into a task's error; `None` if it is not a network failure.

    Args:
        error: The error, or its cause.
        host: Host of the request.
    """
    if isinstance(error, ForbiddenError):
        return InputError(error.message, hint=error.hint)
    if isinstance(error, UnreachableError):
        return error
    if isinstance(error, httpx.HTTPError):
        reason = str(error) or type(error).__name__
        return UnreachableError(f"Cannot reach {host}: {reason}.", detail=repr(error))
    return None
