"""Uploads large files directly to the server's object store, in parts, with signed links from the server.

Several parts at a time, each streamed from disk: no part is held in memory. Parts that the store already has are not
sent again, even after the sender or the server was killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import httpx

from tunefleet.artifacts import LocalFile
from tunefleet.client import direct_download
from tunefleet.client.call import Call, model, nothing, path
from tunefleet.client.routes import workflow_routes
from tunefleet.client.throttle import Throttle
from tunefleet.errors import ArtifactError, ConflictError, ForbiddenError, NotFoundError, UnreachableError
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.direct import (
    DirectAsk,
    DirectGiveUp,
    DirectLink,
    DirectLinks,
    DirectLinksAsk,
    DirectOffer,
    DirectPlan,
)
from tunefleet.schemas.worker_link import Cursor

T = TypeVar("T")
SENDERS: Final = 4
_PIECE_BYTES: Final = 256 << 10
_LINKS_AT_ONCE: Final = 16
_FRUITLESS_TRIES: Final = 5
"""Consecutive failures of a part before the upload fails."""
# Weight of a failed connection attempt in that count.
_NO_WAY: Final = 3
_LONGEST_PAUSE_S: Final = 5.0
_STALE_SHARE: Final = 0.8
"""Share of a link's lifetime in which it is used: the part must also arrive before it expires."""
AGAIN_S: Final = 600.0
"""How long an unreachable store is not tried again."""
logger = logging.getLogger(__name__)


class DirectSender:
    """Uploads files of one attempt.

    Args:
        run: Sends a call to the server.
        reach: Shared knowledge of whether the store is reachable.
        throttle: Limits the transfer rate.
    """

    def __init__(
        self, run: Callable[[Call[Any]], Any], timeout: httpx.Timeout, reach: StoreReach, throttle: Throttle | None
    ) -> None:
        self._run = run
        self._reach = reach
        self._throttle = throttle
        self._timeout = timeout
        self._http: httpx.Client | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.sent_bytes = 0

    def close(self) -> None:
        """Abort running uploads; stored parts are kept."""
        self._closed.set()
        with self._lock:
            if self._http is not None:
                self._http.close()

    def send(self, file: LocalFile, offer: DirectOffer, on_bytes: Callable[[int], None]) -> bool:
        """Upload a file, and wait until the server has accepted it.

        Args:
            on_bytes: Called with the number of bytes added.

        Returns:
            Whether it is stored; if not, upload it through the server.

        Raises:
            ArtifactError: If the file has changed.
            UnreachableError: If the server does not respond, or the store is required and unreachable.
        """
        if file.entry.size_bytes < offer.least_bytes or (not offer.required and self._reach.away):
            return False
        try:
            plan = self._begun(file)
            if plan is not None:
                self._to_the_end(file, plan, on_bytes)
        except ForbiddenError:
            # Direct uploads were turned off meanwhile, or the store rejects them; the server's log has the reason.
            return False
        except Unreached as error:
            if offer.required or self._closed.is_set():
                raise UnreachableError(error.message, hint=error.hint) from error
            self._reach.lose(error.message)
            self._give_up(file, error.message)
            return False
        return True

    def _begun(self, file: LocalFile) -> DirectPlan | None:
        """Return the plan of the upload; `None` if the server has the file already."""
        tries = 0
        while True:
            try:
                plan: DirectPlan = self._run(ask_plan(file.entry))
            except ConflictError:
                # The server is verifying the file for an earlier caller that was killed.
                tries += 1
                if tries > _most_tries(file):
                    raise
                if self._kept(file):
                    return None
                self.pause(tries)
            else:
                return plan

    def _give_up(self, file: LocalFile, why: str) -> None:
        plan: DirectPlan = self._run(ask_plan(file.entry))
        self._run(give_up(file.entry.digest, plan.upload, why[:500]))

    def _to_the_end(self, file: LocalFile, plan: DirectPlan, on_bytes: Callable[[int], None]) -> None:
        tries, counted = 0, False
        while True:
            upload = _Upload(self, file, plan)
            if not counted:
                on_bytes(sum(upload.size_of(number) for number in plan.here))
                counted = True
            try:
                upload.send_lacking(on_bytes)
                self._run(complete(file.entry, plan.upload))
            except Unreached:
                raise
            except (UnreachableError, ConflictError, NotFoundError):
                # The server is still verifying the file, perhaps since before the connection broke; or has accepted it;
                # or has abandoned the upload.
                if self._kept(file):
                    return
                tries += 1
                if tries > _most_tries(file):
                    raise
            else:
                return
            self.pause(tries)
            plan = self._plan_again(file, plan)

    def _plan_again(self, file: LocalFile, plan: DirectPlan) -> DirectPlan:
        try:
            again: DirectPlan = self._run(ask_plan(file.entry))
        except ConflictError:
            return plan.model_copy(update={"here": tuple(range(1, plan.parts + 1))})
        return again

    def _kept(self, file: LocalFile) -> bool:
        return not self._run(workflow_routes.missing_blobs([file.entry])).missing

    def links(self, digest: str, upload: str, numbers: list[int]) -> DirectLinks:
        """Request links."""
        found: DirectLinks = self._run(links(digest, upload, numbers))
        return found

    def put(self, link: DirectLink, pieces: Iterator[bytes], size_bytes: int) -> httpx.Response:
        """Send a part; network errors are httpx's."""
        content = self._counted(self._throttle.paced(pieces) if self._throttle is not None else pieces)
        headers = {**link.headers, "Content-Length": str(size_bytes)}
        return self._client().put(link.url, content=content, headers=headers)

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None:
                # Created on first use: loading the system's certificates takes a while.
                reaching = direct_download.options(self._timeout)
                self._http = httpx.Client(**reaching, limits=httpx.Limits(max_connections=SENDERS))
            return self._http

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._closed.is_set():
                raise UnreachableError("The upload was aborted.", hint="The next try resumes it.")
            yield piece
            self.sent_bytes += len(piece)

    def pause(self, tries: int) -> None:
        """Wait before the next try, with exponential backoff."""
        if self._closed.wait(min(0.1 * 2 ** min(tries, 6), _LONGEST_PAUSE_S)):
            raise UnreachableError("The upload was aborted.", hint="The next try resumes it.")


class _Upload:
    """The parts of one file that are still missing."""

    def __init__(self, sender: DirectSender, file: LocalFile, plan: DirectPlan) -> None:
        self._sender, self._file, self._plan = sender, file, plan
        here = set(plan.here)
        self._lacking = [number for number in range(1, plan.parts + 1) if number not in here]
        self._links: dict[int, tuple[DirectLink, float]] = {}
        self._lock = threading.Lock()
        self._failed = threading.Event()

    def size_of(self, number: int) -> int:
        """Return the size of a part in bytes."""
        return min(self._plan.part_bytes, self._file.entry.size_bytes - (number - 1) * self._plan.part_bytes)

    def send_lacking(self, on_bytes: Callable[[int], None]) -> None:
        """Send the missing parts; the first error ends the upload, and stored parts are kept."""

        def one(number: int) -> None:
            if self._failed.is_set():
                return
            try:
                self._send(number)
            except BaseException:
                self._failed.set()
                raise
            with self._lock:
                on_bytes(self.size_of(number))

        with ThreadPoolExecutor(SENDERS, thread_name_prefix="store-put") as threads:
            for done in [threads.submit(one, number) for number in self._lacking]:
                done.result()

    def _send(self, number: int) -> None:
        tries = 0
        while True:
            link = self._link(number)
            url = httpx.URL(link.url)
            try:
                answer = self._sender.put(link, self._pieces(number), self.size_of(number))
            except (httpx.HTTPError, RuntimeError) as error:
                problem = direct_download.explained(url, error)
                tries += _NO_WAY if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else 1
            else:
                if answer.is_success:
                    return
                problem = _refusal(url.host, answer.status_code)
                tries += 1
                with self._lock:
                    self._links.pop(number, None)
            # A host that cannot be connected to counts threefold: two such failures are enough to fall back to the
            # server.
            if tries >= _FRUITLESS_TRIES:
                raise Unreached(problem.message, hint=problem.hint)
            self._sender.pause(tries)

    def _link(self, number: int) -> DirectLink:
        """Return a link for a part; requests those of the next parts along with it."""
        with self._lock:
            link, until = self._links.get(number, (None, 0.0))
            if link is not None and time.monotonic() < until:
                return link
            # Under the lock: the sender threads share one batch of links, and only one of them requests the next.
            at = self._lacking.index(number)
            wanted = self._lacking[at : at + _LINKS_AT_ONCE]
            asked_at = time.monotonic()
            found = self._sender.links(self._file.entry.digest, self._plan.upload, wanted)
            until = asked_at + found.good_s * _STALE_SHARE
            self._links.update({each.part: (each, until) for each in found.links})
            return self._links[number][0]

    def _pieces(self, number: int) -> Iterator[bytes]:
        left = self.size_of(number)
        with self._file.path.open("rb") as source:
            source.seek((number - 1) * self._plan.part_bytes)
            while left:
                piece = source.read(min(_PIECE_BYTES, left))
                if not piece:
                    raise ArtifactError(f"{self._file.path} was truncated during the upload.", hint="Push it again.")
                left -= len(piece)
                yield piece


def _most_tries(file: LocalFile) -> int:
    # The server reads the complete file back to verify it, which takes longer for larger files.
    return _FRUITLESS_TRIES + int(file.entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S / _LONGEST_PAUSE_S)


def _refusal(host: str, status: int) -> UnreachableError:
    if status == httpx.codes.NOT_FOUND:
        # The server or the store has abandoned the upload; a new plan lists the missing parts.
        raise NotFoundError(f"The object store {host} no longer has this upload.")
    return UnreachableError(
        f"The object store {host} rejected a part of a file with status {status}.",
        hint="Check that the clocks of server and store agree, or set TUNEFLEET_DIRECT_UPLOADS=off on the server.",
    )


class Unreached(UnreachableError):
    """The object store is unreachable, or rejects a signed link."""


class StoreReach:
    """Whether the object store is reachable; shared by all attempts of a process, so that only one has to time out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._away_until = 0.0

    @property
    def away(self) -> bool:
        """Whether the store was unreachable recently."""
        with self._lock:
            return time.monotonic() < self._away_until

    def lose(self, why: str) -> None:
        """Mark the store as unreachable; logs the first time only."""
        with self._lock:
            logged, self._away_until = time.monotonic() < self._away_until, time.monotonic() + AGAIN_S
        if not logged:
            logger.warning("Uploading through the server for the next %.0f minutes: %s", AGAIN_S / 60, why)


def ask_plan(entry: FileEntry) -> Call[DirectPlan]:
    """Start or resume an upload to the object store."""
    body = DirectAsk(size_bytes=entry.size_bytes)
    return Call("POST", path("blobs", entry.digest, "direct"), model(DirectPlan), body=body)


def links(digest: str, upload: str, parts: Sequence[int]) -> Call[DirectLinks]:
    """Request upload links for parts of a file."""
    where = path("blobs", digest, "direct", upload, "links")
    return Call("POST", where, model(DirectLinks), body=DirectLinksAsk(parts=tuple(parts)))


def complete(entry: FileEntry, upload: str) -> Call[Cursor]:
    """Have the server verify and accept a file."""
    where = path("blobs", entry.digest, "direct", upload, "complete")
    patience_s = workflow_routes.ANSWER_S + entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S
    # Not retried: after a broken connection the caller first checks whether the server has the file.
    return Call("POST", where, model(Cursor), repeatable=False, read_timeout_s=patience_s)


def give_up(digest: str, upload: str, why: str) -> Call[None]:
    """Abort an upload to the object store, and report the reason."""
    where = path("blobs", digest, "direct", upload, "give-up")
    return Call("POST", where, nothing, body=DirectGiveUp(why=why), repeatable=False)
