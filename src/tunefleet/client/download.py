"""Fetch a file from an address that a user gave, without reaching what the address must not reach.

The host is looked up here, and the connection goes to the very address that was checked; redirects are checked
again. Private ranges need to be allowed, metadata services never are.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx

from tunefleet.errors import ForbiddenError, InputError, TooLargeError, UnreachableError

logger = logging.getLogger(__name__)

_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
_REDIRECTS: Final = 5
_METADATA: Final = frozenset({"169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200"})
_MAX_BYTES: Final = 1 << 40

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Downloader:
    """Fetches files into a folder; a whole one is not fetched again.

    Args:
        folder: Where they go.
        allowed: Hosts and networks in private ranges that may be reached.
        max_bytes: A larger file is refused.
    """

    def __init__(self, folder: Path, *, allowed: Sequence[str] = (), max_bytes: int = _MAX_BYTES) -> None:
        self._folder = folder
        self._hosts = {name.lower() for name in allowed}
        self._networks = list(_networks(allowed))
        self._max_bytes = max_bytes

    def fetch(self, url: str) -> Path:
        """Fetch a file.

        Returns:
            Where it lies, under its own name.

        Raises:
            ForbiddenError: If the address, or one that it leads to, may not be reached.
            InputError: If there is nothing at the address.
            TooLargeError: If the file is over the limit.
            UnreachableError: If the host does not answer.
        """
        folder = self._folder / f".fetched-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        name = Path(urlsplit(url).path).name or "data"
        whole = folder / name
        if whole.exists():
            return whole
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{name}.{os.getpid()}.partial"
        try:
            self._download(url, part)
            part.replace(whole)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"{_shown(url)} cannot be fetched: {error}.") from error
        finally:
            part.unlink(missing_ok=True)
        logger.info("Fetched %s (%d bytes).", _shown(url), whole.stat().st_size)
        return whole

    def _download(self, url: str, part: Path) -> None:
        # No proxy from the environment: it would look the name up again, and connect to what it finds.
        with httpx.Client(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as client:
            for _ in range(_REDIRECTS):
                request = self._request(client, url)
                response = client.send(request, stream=True)
                try:
                    if not response.is_redirect:
                        self._write(url, response, part)
                        return
                    url = urljoin(url, response.headers["location"])
                finally:
                    response.close()
        raise UnreachableError(f"{_shown(url)} redirects too often.")

    def _request(self, client: httpx.Client, url: str) -> httpx.Request:
        """Make the request to the very address that was checked; name and certificate stay those of the host."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ForbiddenError(f"{_shown(url)} is no http or https address.")
        address = self._checked(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        target = httpx.URL(url).copy_with(host=str(address))
        headers = {"Host": parts.netloc.rpartition("@")[2]}
        return client.build_request("GET", target, headers=headers, extensions={"sni_hostname": parts.hostname})

    def _checked(self, host: str, port: int) -> Address:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UnreachableError(f"The host {host} has no address: {error}.") from error
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        for address in addresses:
            if not self._may_reach(host, address):
                raise ForbiddenError(
                    f"{host} is {address}, which is not a public address.",
                    hint="Add it to TUNEFLEET_URL_ALLOW if it is meant.",
                )
        return addresses[0]

    def _may_reach(self, host: str, address: Address) -> bool:
        plain = getattr(address, "ipv4_mapped", None) or address
        if str(plain) in _METADATA:
            return False
        if host.lower() in self._hosts or any(plain in network for network in self._networks):
            return True
        return bool(plain.is_global and not plain.is_multicast)

    def _write(self, url: str, response: httpx.Response, part: Path) -> None:
        if response.status_code >= 500 or response.status_code == 429:
            raise UnreachableError(f"{_shown(url)} answers {response.status_code}.")
        if response.status_code != 200:
            raise InputError(f"{_shown(url)} cannot be fetched: the host answers {response.status_code}.")
        size = 0
        with part.open("wb") as file:
            for piece in response.iter_bytes(1 << 20):
                size += len(piece)
                if size > self._max_bytes:
                    raise TooLargeError(f"{_shown(url)} is over {self._max_bytes} bytes.")
                file.write(piece)


def _networks(allowed: Iterable[str]) -> Iterable[Any]:
    for name in allowed:
        try:
            yield ipaddress.ip_network(name, strict=False)
        except ValueError:
            continue  # a host's name


def _shown(url: str) -> str:
    """Return an address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
