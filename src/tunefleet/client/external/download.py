"""Fetch a file from an address that a user gave: what may be reached is `reach`'s business.

A download that broke goes on where it stopped, if the host says that the file is still the same one. What has a
digest (links of our own server name it as ETag) is checked before it gets its name.
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
from tunefleet.client.external.interrupt import Stop
from tunefleet.client.external.limit import Limit
from tunefleet.client.external.ssrf_guard import Reach, shown, silence_s
from tunefleet.client.throttle import Throttle
from tunefleet.client.transfer import OnProgress, Progress, ignore_progress
from tunefleet.errors import ArtifactError, ForbiddenError, InputError, TooLargeError, UnreachableError

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 40
_FRUITLESS_TRIES: Final = 4
"""So often a download may break in a row without so much getting through as makes a try worth while."""
_FRUIT_BYTES: Final = 64 << 10
_WINDOW_S: Final = 60.0
_SLOWEST_BYTES_PER_S: Final = 256
"""A host that sends less, over a minute, is given up: a byte now and then would hold a worker for ever."""
# A file that is not whole after so long is given up.
_LONGEST_S: Final = 7 * 24 * 3600.0
_DIGEST: Final = re.compile(r'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Address:
    """What is to be fetched, and how.

    Args:
        url: An http or https address.
        headers: Sent along.
        timeout_s: Silence after which the host is given up.
        filename: What to call it; by default what the address ends with.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    filename: str | None = None

    @property
    def name(self) -> str:
        """What the file is called."""
        return Path(self.filename or urlsplit(self.url).path).name or "data"


class Downloader:
    """Fetches files into a folder; a whole one is not fetched again.

    Args:
        folder: Where they go.
        allowed: Hosts and networks in private ranges that may be reached.
        max_bytes: A larger file is refused.
        throttle: Holds it to a speed.
        who: Which process fetches them, in words.
        on_progress: Told how far a file is, some times a second.
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
        self._reach = Reach(allowed, who=who)
        self._max_bytes = max_bytes
        self._throttle = throttle
        self._on_progress = on_progress

    def fetch(self, address: str | Address, stop: Stop | None = None) -> Path:
        """Fetch a file.

        Args:
            address: Where it is.
            stop: Ends it early, connection and all; what has come is kept for the next time.

        Returns:
            Where it lies, under its own name.

        Raises:
            ForbiddenError: If the address, or one that it leads to, may not be reached.
            InputError: If there is nothing at the address.
            ArtifactError: If what arrived does not have the digest that the host names.
            TooLargeError: If the file is over the limit.
            UnreachableError: If the host does not answer, or the connection breaks again and again.
            Stopped: If it is not wanted any more.
        """
        stop = stop or Stop()
        wanted = Address(address) if isinstance(address, str) else address
        folder = self._folder / f".fetched-{hashlib.sha256(wanted.url.encode()).hexdigest()[:16]}"
        whole = folder / wanted.name
        if whole.exists():
            return whole
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not whole.exists():
                self._until_whole(wanted, folder / f".{wanted.name}.partial", stop).replace(whole)
                logger.info("Fetched %s (%d bytes).", shown(wanted.url), whole.stat().st_size)
        return whole

    def _until_whole(self, wanted: Address, part: Path, stop: Stop) -> Path:
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
                _note_of(part).unlink(missing_ok=True)
                return part

    def _download(self, wanted: Address, part: Path, pace: _Pace, stop: Stop) -> str | None:
        """Fetch what lacks; returns the digest of the whole file, if the host names it."""
        note = _note_of(part)
        etag = note.read_text() if note.exists() and part.exists() else ""
        headers = {name: value for name, value in wanted.headers.items() if name.lower() not in {"range", "if-range"}}
        # The file's own bytes are wanted, not a packing of them for the way.
        headers["Accept-Encoding"] = "identity"
        if etag:
            headers |= {"Range": f"bytes={part.stat().st_size}-", "If-Range": etag}
        timeout = httpx.Timeout(wanted.timeout_s, connect=min(10.0, wanted.timeout_s))
        limit = Limit(silence_s(timeout), stop)
        with self._reach.get(wanted.url, headers=headers, timeout=timeout, limit=limit) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and etag:
                _forget(part)  # it was whole, or is not what it was
                return self._download(wanted, part, pace, stop)
            _refuse(wanted.url, response)
            goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
            told = response.headers.get("etag", "")
            note.write_text(told if not told.startswith("W/") else "")
            pace.begins()
            self._write(wanted, response, part, pace, limit, goes_on=goes_on)
        found = _DIGEST.fullmatch(told)
        return found[1] if found else None

    def _write(
        self, wanted: Address, response: httpx.Response, part: Path, pace: _Pace, limit: Limit, *, goes_on: bool
    ) -> None:
        size = part.stat().st_size if goes_on else 0
        expected = response.headers.get("content-length")
        end = size + int(expected) if expected and expected.isdigit() else None
        with part.open("ab" if goes_on else "wb") as file:
            sink = self._throttle.sink(file) if self._throttle else file
            # What frames a body is no piece of it, and may drip as well.
            limit.renew(wanted.timeout_s)
            for piece in response.iter_raw():
                limit.rest()
                size += len(piece)
                if size > self._max_bytes:
                    raise TooLargeError(f"{shown(wanted.url)} is over {self._max_bytes} bytes.")
                sink.write(piece)
                pace.arrived(len(piece))
                self._on_progress(Progress("downloading", wanted.name, size, end or 0))
                limit.renew(wanted.timeout_s)
        if end is not None and size < end:
            raise UnreachableError(f"The connection to {shown(wanted.url)} broke.")


class _TooSlow(UnreachableError):
    """The host sends, but so little that it is given up."""


class _Pace:
    """Gives a host up that sends too little once it sends, and a file that takes too long over all connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = self._window = time.monotonic()
        self._bytes = 0

    def begins(self) -> None:
        """Begin to measure: the host has answered, and sends."""
        self._window, self._bytes = time.monotonic(), 0

    def arrived(self, count: int) -> None:
        """Count bytes.

        Raises:
            _TooSlow: If there are too few for the time.
        """
        self._bytes += count
        now = time.monotonic()
        took_s = now - self._window
        if now - self._began > _LONGEST_S:
            raise _TooSlow(f"{shown(self._url)} is not whole after {_LONGEST_S / 3600:.0f} hours.")
        if took_s > _WINDOW_S:
            if self._bytes < took_s * _SLOWEST_BYTES_PER_S:
                raise _TooSlow(f"{shown(self._url)} sends less than {_SLOWEST_BYTES_PER_S} bytes a second.")
            self._window, self._bytes = now, 0


def _refuse(url: str, response: httpx.Response) -> None:
    status = response.status_code
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        raise UnreachableError(f"{shown(url)} answers {status}.")
    if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise InputError(f"{shown(url)} cannot be fetched: the host answers {status}.")


def _check(wanted: Address, part: Path, digest: str | None) -> None:
    if digest is not None and hash_file(part)[0] != digest:
        _forget(part)
        raise ArtifactError(f"{shown(wanted.url)} arrived damaged.", hint="Fetch it again.")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_of(part).unlink(missing_ok=True)


def _note_of(part: Path) -> Path:
    return part.with_suffix(".etag")
