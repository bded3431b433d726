"""Downloads a file from an address that a user gave; `ssrf_guard` decides what may be reached.

An interrupted download is resumed if the host confirms that the file is unchanged. A file with a known digest (our own
servers send it as ETag) is verified before it gets its name.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
from filelock import FileLock

from tunefleet.artifacts import hash_file
from tunefleet.client.external.interrupt import CancelToken
from tunefleet.client.external.limit import Limit
from tunefleet.client.external.ssrf_guard import SsrfGuard, shown, silence_s
from tunefleet.client.throttle import Throttle
from tunefleet.client.transfer import OnProgress, Progress, ignore_progress
from tunefleet.errors import ArtifactError, ForbiddenError, InputError, TooLargeError, UnreachableError

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 40
_FRUITLESS_TRIES: Final = 4
"""Consecutive interruptions with less than `_FRUIT_BYTES` of progress before the download fails."""
_FRUIT_BYTES: Final = 64 << 10
_WINDOW_S: Final = 60.0
_SLOWEST_BYTES_PER_S: Final = 256
"""Minimum rate over a minute: a host that drips single bytes would block a worker forever."""
# Total time limit of a download.
_LONGEST_S: Final = 7 * 24 * 3600.0
_DIGEST: Final = re.compile(r'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Address:
    """What to download, and how.

    Args:
        url: An HTTP(S) URL.
        headers: Headers of the request.
        timeout_s: Idle timeout.
        filename: Name of the file; by default the last segment of the URL.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    filename: str | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return Path(self.filename or urlsplit(self.url).path).name or "data"


class Downloader:
    """Downloads files into a folder; a complete file is not downloaded again.

    Args:
        folder: Target folder.
        allowed: Hosts and networks in private ranges that may be reached.
        max_bytes: Maximum file size.
        throttle: Limits the transfer rate.
        who: Name of the process in error messages.
        on_progress: Called with the progress, several times a second.
    """

    def __init__(
        self,
        folder: Path,
        *,
        allowed: Sequence[str] = (),
        max_bytes: int = _MAX_BYTES,
        throttle: Throttle | None = None,
        who: str = "worker",
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self._folder = folder
        self._reach = SsrfGuard(allowed, who=who)
        self._max_bytes = max_bytes
        self._throttle = throttle
        self._on_progress = on_progress

    def fetch(self, address: str | Address, stop: CancelToken | None = None) -> Path:
        """Download a file.

        Args:
            address: What to download.
            stop: Cancels the download and closes its connection; the received part is kept for the next call.

        Returns:
            Path of the file, under its own name.

        Raises:
            ForbiddenError: If the address, or one that it redirects to, is not allowed.
            InputError: If there is no file at the address.
            ArtifactError: If the file does not match the digest that the host sent.
            TooLargeError: If the file exceeds the limit.
            UnreachableError: If the host does not respond, or the connection breaks repeatedly.
            Stopped: If it was cancelled.
        """
        stop = stop or CancelToken()
        wanted = Address(address) if isinstance(address, str) else address
        folder = self._folder / f".fetched-{hashlib.sha256(wanted.url.encode()).hexdigest()[:16]}"
        complete = folder / wanted.name
        if complete.exists():
            return complete
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Tasks of several workers on this machine may need the same file: one downloads it, the others wait.
        with FileLock(folder / ".lock"):
            if not complete.exists():
                self._until_whole(wanted, folder / f".{wanted.name}.partial", stop).replace(complete)
                logger.info("Fetched %s (%d bytes).", shown(wanted.url), complete.stat().st_size)
        return complete

    def _until_whole(self, wanted: Address, part: Path, stop: CancelToken) -> Path:
        tries = 0
        pace = _Pace(wanted.url)
        while True:
            stop.check()
            before = part.stat().st_size if part.exists() else 0
            try:
                digest = self._download(wanted, part, pace, stop)
            except UnreachableError as error:
                if isinstance(error, _TooSlow):
                    raise
                reached = part.stat().st_size if part.exists() else 0
                tries = 0 if reached - before >= _FRUIT_BYTES else tries + 1
                if reached <= before or tries > _FRUITLESS_TRIES:
                    raise
            except (ForbiddenError, InputError, TooLargeError):
                _forget(part)
                raise
            else:
                _check(wanted, part, digest)
                _etag_file(part).unlink(missing_ok=True)
                return part

    def _download(self, wanted: Address, part: Path, pace: _Pace, stop: CancelToken) -> str | None:
        """Download the missing part; returns the digest of the complete file if the host sends it."""
        etag_file = _etag_file(part)
        etag = etag_file.read_text() if etag_file.exists() and part.exists() else ""
        headers = {name: value for name, value in wanted.headers.items() if name.lower() not in {"range", "if-range"}}
        # No content encoding: offsets and digest refer to the file's own bytes.
        headers["Accept-Encoding"] = "identity"
        if etag:
            headers |= {"Range": f"bytes={part.stat().st_size}-", "If-Range": etag}
        timeout = httpx.Timeout(wanted.timeout_s, connect=min(10.0, wanted.timeout_s))
        limit = Limit(silence_s(timeout), stop)
        with self._reach.get(wanted.url, headers=headers, timeout=timeout, limit=limit) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and etag:
                _forget(part)  # it was complete, or the file has changed
                return self._download(wanted, part, pace, stop)
            _refuse(wanted.url, response)
            goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
            etag_header = response.headers.get("etag", "")
            etag_file.write_text(etag_header if not etag_header.startswith("W/") else "")
            pace.begins()
            self._write(wanted, response, part, pace, limit, goes_on=goes_on)
        found = _DIGEST.fullmatch(etag_header)
        return found[1] if found else None

    def _write(
        self, wanted: Address, response: httpx.Response, part: Path, pace: _Pace, limit: Limit, *, goes_on: bool
    ) -> None:
        size = part.stat().st_size if goes_on else 0
        expected = response.headers.get("content-length")
        end = size + int(expected) if expected and expected.isdigit() else None
        with part.open("ab" if goes_on else "wb") as file:
            sink = self._throttle.sink(file) if self._throttle else file
            # The framing of a body yields no piece and may drip, too.
            limit.renew(wanted.timeout_s)
            for piece in response.iter_raw():
                limit.rest()
                size += len(piece)
                if size > self._max_bytes:
                    raise TooLargeError(f"{shown(wanted.url)} exceeds {self._max_bytes} bytes.")
                sink.write(piece)
                pace.arrived(len(piece))
                self._on_progress(Progress("downloading", wanted.name, size, end or 0))
                limit.renew(wanted.timeout_s)
        if end is not None and size < end:
            raise UnreachableError(f"The connection to {shown(wanted.url)} was interrupted.")


class _TooSlow(UnreachableError):
    """The host sends less than the minimum rate."""


class _Pace:
    """Enforces the minimum rate of a connection, and the time limit of a file over all connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = self._window = time.monotonic()
        self._bytes = 0

    def begins(self) -> None:
        """Start to measure: the host has started to send."""
        self._window, self._bytes = time.monotonic(), 0

    def arrived(self, count: int) -> None:
        """Count bytes.

        Raises:
            _TooSlow: If the rate is too low.
        """
        self._bytes += count
        now = time.monotonic()
        took_s = now - self._window
        if now - self._began > _LONGEST_S:
            raise _TooSlow(f"{shown(self._url)} is still incomplete after {_LONGEST_S / 3600:.0f} hours.")
        if took_s > _WINDOW_S:
            if self._bytes < took_s * _SLOWEST_BYTES_PER_S:
                raise _TooSlow(f"{shown(self._url)} sends less than {_SLOWEST_BYTES_PER_S} bytes/s.")
            self._window, self._bytes = now, 0


def _refuse(url: str, response: httpx.Response) -> None:
    status = response.status_code
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        raise UnreachableError(f"{shown(url)} responded with status {status}.")
    if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise InputError(f"Cannot download {shown(url)}: the host responded with status {status}.")


def _check(wanted: Address, part: Path, digest: str | None) -> None:
    if digest is not None and hash_file(part)[0] != digest:
        _forget(part)
        raise ArtifactError(f"{shown(wanted.url)} was corrupted in transfer.", hint="Download it again.")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _etag_file(part).unlink(missing_ok=True)


def _etag_file(part: Path) -> Path:
    return part.with_suffix(".etag")
