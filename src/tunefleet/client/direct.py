"""Send large files to the server's object store, in parts, by links that the server hands out.

Several parts at once, each read from the disk as it goes: no part is held in memory. What the store has already is not
sent again, whoever was killed meanwhile.
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
"""So often a part may break in a row."""
# So much a try counts that did not even find the host.
_NO_WAY: Final = 3
_LONGEST_PAUSE_S: Final = 5.0
_STALE_SHARE: Final = 0.8
"""After this share of its time a link is not used any more: its part has to arrive, too."""


class DirectSender:
    """Sends files of one attempt.

    Args:
        run: Sends a call to the server.
        reach: What is known of the way to the store.
        throttle: Holds what is sent to a speed.
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
        """Give up what is on its way; what arrived stays."""
        self._closed.set()
        with self._lock:
            if self._http is not None:
                self._http.close()

    def send(self, file: LocalFile, offer: DirectOffer, on_bytes: Callable[[int], None]) -> bool:
        """Send a file, and wait until the server keeps it.

        Args:
            on_bytes: Told how many more bytes are there.

        Returns:
            Whether it is kept; if not, it is to go through the server.

        Raises:
            ArtifactError: If the file is not what it was.
            UnreachableError: If the server stays away, or the store where it must be used.
        """
        if file.entry.size_bytes < offer.least_bytes or (not offer.required and self._reach.away):
            return False
        try:
            plan = self._begun(file)
            if plan is not None:
                self._to_the_end(file, plan, on_bytes)
        except ForbiddenError:
            # It was turned off meanwhile, or the store refuses what it takes; the server's log says so.
            return False
        except Unreached as error:
            if offer.required or self._closed.is_set():
                raise UnreachableError(error.message, hint=error.hint) from error
            self._reach.lose(error.message)
            self._give_up(file, error.message)
            return False
        return True

    def _begun(self, file: LocalFile) -> DirectPlan | None:
        """Return how the file is sent; null if the server keeps it by now."""
        tries = 0
        while True:
            try:
                plan: DirectPlan = self._run(ask_plan(file.entry))
            except ConflictError:
                # It is being read back for somebody who asked and was killed.
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
                # It is being read back, perhaps for somebody who asked before the connection broke; or it is kept by
                # now; or the server has given it up.
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
        """Ask for links."""
        found: DirectLinks = self._run(links(digest, upload, numbers))
        return found

    def put(self, link: DirectLink, pieces: Iterator[bytes], size_bytes: int) -> httpx.Response:
        """Send a part; an error of the network is httpx's."""
        content = self._counted(self._throttle.paced(pieces) if self._throttle is not None else pieces)
        headers = {**link.headers, "Content-Length": str(size_bytes)}
        return self._client().put(link.url, content=content, headers=headers)

    def _client(self) -> httpx.Client:
        with self._lock:
            if self._http is None:
                # Not before it is wanted: what this machine trusts takes a while to load.
                reaching = direct_download.options(self._timeout)
                self._http = httpx.Client(**reaching, limits=httpx.Limits(max_connections=SENDERS))
            return self._http

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._closed.is_set():
                raise UnreachableError("The upload was given up.", hint="It goes on with the next try.")
            yield piece
            self.sent_bytes += len(piece)

    def pause(self, tries: int) -> None:
        """Wait before another try, the longer the more there were."""
        if self._closed.wait(min(0.1 * 2 ** min(tries, 6), _LONGEST_PAUSE_S)):
            raise UnreachableError("The upload was given up.", hint="It goes on with the next try.")


class _Upload:
    """The parts of one file that are to be sent."""

    def __init__(self, sender: DirectSender, file: LocalFile, plan: DirectPlan) -> None:
        self._sender, self._file, self._plan = sender, file, plan
        here = set(plan.here)
        self._lacking = [number for number in range(1, plan.parts + 1) if number not in here]
        self._links: dict[int, tuple[DirectLink, float]] = {}
        self._lock = threading.Lock()
        self._failed = threading.Event()

    def size_of(self, number: int) -> int:
        """Return the length of a part."""
        return min(self._plan.part_bytes, self._file.entry.size_bytes - (number - 1) * self._plan.part_bytes)

    def send_lacking(self, on_bytes: Callable[[int], None]) -> None:
        """Send the parts that lack; the first error ends all, and what arrived stays."""

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
                said = direct_download.explained(url, error)
                tries += _NO_WAY if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else 1
            else:
                if answer.is_success:
                    return
                said = _refusal(url.host, answer.status_code)
                tries += 1
                with self._lock:
                    self._links.pop(number, None)
            if tries >= _FRUITLESS_TRIES:
                raise Unreached(said.message, hint=said.hint)
            self._sender.pause(tries)

    def _link(self, number: int) -> DirectLink:
        """Return a link for a part; those of the next ones are asked for along with it."""
        with self._lock:
            link, until = self._links.get(number, (None, 0.0))
            if link is not None and time.monotonic() < until:
                return link
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
                    raise ArtifactError(
                        f"{self._file.path} became shorter while it was uploaded.", hint="Push it again."
                    )
                left -= len(piece)
                yield piece


def _most_tries(file: LocalFile) -> int:
    # The server reads a whole file back, which takes the longer the more there is.
    return _FRUITLESS_TRIES + int(file.entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S / _LONGEST_PAUSE_S)


def _refusal(host: str, status: int) -> UnreachableError:
    if status == httpx.codes.NOT_FOUND:
        # The server or the store has given it up; a new plan says what is to be sent.
        raise NotFoundError(f"{host}, where the server keeps its files, does not know the upload any more.")
    return UnreachableError(
        f"{host}, where the server keeps its files, answers {status} to a part of a file.",
        hint="Compare the clocks of server and store; TUNEFLEET_DIRECT_UPLOADS=off does without.",
    )


logger = logging.getLogger(__name__)
AGAIN_S: Final = 600.0
"""So long a store that could not be reached is not tried again."""


class Unreached(UnreachableError):
    """The object store cannot be reached, or refuses what the server has signed."""


class StoreReach:
    """Shared by all attempts of one process, so that each of them need not find out by itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._away_until = 0.0

    @property
    def away(self) -> bool:
        """Whether the store was out of reach a while ago."""
        with self._lock:
            return time.monotonic() < self._away_until

    def lose(self, why: str) -> None:
        """Note that the store is out of reach; the log is told once."""
        with self._lock:
            told, self._away_until = time.monotonic() < self._away_until, time.monotonic() + AGAIN_S
        if not told:
            logger.warning("Files pass through the server for %.0f minutes: %s", AGAIN_S / 60, why)


def ask_plan(entry: FileEntry) -> Call[DirectPlan]:
    """Begin to send a file to the object store, or go on with it."""
    body = DirectAsk(size_bytes=entry.size_bytes)
    return Call("POST", path("blobs", entry.digest, "direct"), model(DirectPlan), body=body)


def links(digest: str, upload: str, parts: Sequence[int]) -> Call[DirectLinks]:
    """Return links that take parts of a file."""
    where = path("blobs", digest, "direct", upload, "links")
    return Call("POST", where, model(DirectLinks), body=DirectLinksAsk(parts=tuple(parts)))


def complete(entry: FileEntry, upload: str) -> Call[Cursor]:
    """Let the server read a file back and keep it."""
    where = path("blobs", entry.digest, "direct", upload, "complete")
    patience_s = workflow_routes.ANSWER_S + entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S
    # Not repeated blindly: after a break the server is asked first whether it has it.
    return Call("POST", where, model(Cursor), repeatable=False, read_timeout_s=patience_s)


def give_up(digest: str, upload: str, why: str) -> Call[None]:
    """Abort an upload to the object store, and tell why."""
    where = path("blobs", digest, "direct", upload, "give-up")
    return Call("POST", where, nothing, body=DirectGiveUp(why=why), repeatable=False)
