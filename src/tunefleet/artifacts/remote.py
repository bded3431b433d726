"""Common parts of the remote stores: sending with a second hash, cached sizes, deletion in the background.

Uploads are collected in the server's folder, where they can be resumed, and sent to the service once their digest is
verified. Each service adds its own requests.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from tunefleet.artifacts.blobs import BlobStore, Link, NoRoomError, checked
from tunefleet.artifacts.direct import ARRIVING, Arrivals, DirectUploads
from tunefleet.artifacts.folder import BLOBS, FolderStore
from tunefleet.artifacts.manifest import is_digest
from tunefleet.errors import ArtifactError, MachineError, TunefleetError, UnreachableError

_log = logging.getLogger(__name__)
LINK_S: Final = 900
SENDERS: Final = 8
TYPE: Final = "application/octet-stream"
_REMEMBERED: Final = 65_536
_FULL: Final = frozenset(
    {"AccountStorageLimitExceeded", "InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull"}
)
_CLOCK: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_KEYS: Final = frozenset(
    {
        "AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch",
        "ExpiredToken", "Forbidden", "InvalidAccessKeyId", "InvalidToken", "NoCredentialsError", "RefreshError",
        "SignatureDoesNotMatch", "TokenRefreshRequired", "UserSuspended", "403", "401",
    }
)  # fmt: skip
_NO_PLACE: Final = frozenset({"ContainerNotFound", "NoSuchBucket"})
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a service's listing; times are Unix times."""

    key: str
    size_bytes: int
    kept_at: float


class RemoteStore(BlobStore):
    """Content-addressed files in a service.

    Several processes may use a prefix if each of them sets `others_write` and they take turns at deleting.
    """

    def __init__(self, root: Path, name: str, prefix: str, *, link_s: int) -> None:
        super().__init__(root)
        refuse_two_places(root, name)
        self.name = name
        self._prefix = "/".join(filter(None, (prefix, BLOBS)))
        self._arriving_place = "/".join(filter(None, (prefix, ARRIVING)))
        self._link_s = link_s
        self.executor = ThreadPoolExecutor(SENDERS, thread_name_prefix="store-send")
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="store-delete")
        self._sizes: dict[str, int] = {}
        self._doomed: set[str] = set()
        self._arriving: Counter[str] = Counter()
        self._deleting: str | None = None
        self._deletions = 0
        self._may_list_parts = True
        # Guards the cached state; never held during a request. An upload waits while its object is being deleted.
        self._order = threading.Condition()

    @abstractmethod
    def _head(self, key: str) -> int | None:
        """Return the size of an object in bytes; `None` if it does not exist."""

    @abstractmethod
    def _url(self, key: str, filename: str) -> str:
        """Return a signed link to an object."""

    @abstractmethod
    def _read(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object."""

    @abstractmethod
    def _listed(self) -> Iterator[ListedObject]:
        """Yield the objects below the prefix."""

    @abstractmethod
    def _send(self, part: Path, key: str, digest: str) -> None:
        """Store a file atomically, hashing the bytes that are sent."""

    @abstractmethod
    def _remove(self, key: str) -> None:
        """Delete an object; a missing one counts as deleted."""

    @abstractmethod
    def _sweep_there(self, limit: float) -> None:
        """Delete parts of interrupted uploads that were started before a Unix time."""

    @abstractmethod
    def _explained(self) -> AbstractContextManager[None]:
        """Translate errors of the service."""

    def close(self) -> None:
        """Finish running uploads; pending deletions are repeated by the next collection."""
        self._deleter.shutdown(cancel_futures=True)
        if self.executor is not None:
            self.executor.shutdown()

    def find(self, digest: str) -> int | None:
        """Return the size of a file in bytes; `None` if it is not in the store."""
        key = self._key(digest)
        with self._order:
            if digest in self._doomed:
                return None
            # If other servers delete, too, only the service knows.
            known, deletions = None if self.others_write else self._sizes.get(digest), self._deletions
        if known is not None:
            return known
        with self._explained():
            size_bytes = self._head(key)
        if size_bytes is None:
            return None
        with self._order:
            # A deletion since the request may have removed the object: do not cache the answer.
            if deletions == self._deletions:
                self._remember(digest, size_bytes)
        return size_bytes

    def source(self, digest: str, filename: str) -> Link:
        """Return a link to a file, valid for some minutes."""
        self.size(digest)
        with self._explained():
            return Link(self._url(self._key(digest), filename))

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file; raises as `source` does."""
        self.size(digest)
        with self._explained():
            yield from self._read(self._key(digest))

    def kept_before(self, at: float) -> dict[str, int]:
        """Return digest and size in bytes of each file that was stored before a Unix time."""
        found: dict[str, int] = {}
        with self._explained():
            for each in self._listed():
                digest = each.key.rpartition("/")[2]
                if is_digest(digest) and each.kept_at < at:
                    found[digest] = each.size_bytes
        return found

    def keep(self, part: Path, digest: str) -> None:
        """Send a file to the store."""
        self._place(digest, part.stat().st_size, lambda key: self._send(part, key, digest))
        part.unlink()

    def _take_direct(self, arrivals: Arrivals) -> None:
        """Enable direct uploads by workers."""
        self.direct = DirectUploads(arrivals, self._explained, self._place)

    def _place(self, digest: str, size_bytes: int, send: Callable[[str], None]) -> None:
        key, arrived = self._key(digest), False
        with self._order:
            self._arriving[digest] += 1
            self._order.wait_for(lambda: self._deleting != digest)
        try:
            with self._explained():
                send(key)
            arrived = True
        finally:
            with self._order:
                self._arriving -= Counter((digest,))
                if arrived:
                    self._doomed.discard(digest)
                    self._remember(digest, size_bytes)

    def delete(self, digest: str) -> None:
        """Delete a file: hidden now, removed in the background; with other servers, removed before this returns."""
        key = self._key(digest)
        with self._order:
            self._deletions += 1
            self._doomed.add(digest)
            self._sizes.pop(digest, None)
        if self.others_write:
            self._delete(digest, key)
        else:
            self._deleter.submit(self._delete, digest, key)

    def sweep_partials(self, older_than_s: float) -> int:
        """Delete abandoned uploads, here and in the store; returns the bytes freed here."""
        freed = super().sweep_partials(older_than_s)
        try:
            with self._explained():
                self._sweep_there(time.time() - older_than_s)
        except MachineError as error:
            level = logging.WARNING if self._may_list_parts else logging.DEBUG
            self._may_list_parts = False
            _log.log(
                level, "Parts of interrupted uploads in %s cannot be deleted: %s", self.name, error.detail or error
            )
        return freed

    def _delete(self, digest: str, key: str) -> None:
        with self._order:
            if digest not in self._doomed or self._arriving[digest]:
                return
            self._deleting = digest
        gone = False
        try:
            with self._explained():
                self._remove(key)
            gone = True
        except TunefleetError as error:
            # The next collection tries again. A single server hides the file until then. With other servers it must
            # stay visible: another one may have stored it again.
            _log.warning("Cannot delete %s from %s: %s", key, self.name, error.detail or error)
        finally:
            with self._order:
                self._deleting = None
                if gone or self.others_write:
                    self._doomed.discard(digest)
                self._order.notify_all()

    def _remember(self, digest: str, size_bytes: int) -> None:
        while len(self._sizes) >= _REMEMBERED:
            self._sizes.pop(next(iter(self._sizes)), None)
        self._sizes[digest] = size_bytes

    def _key(self, digest: str) -> str:
        return f"{self._prefix}/{checked(digest)[:2]}/{digest}"


def refuse_two_places(root: Path, name: str) -> None:
    """Refuse a remote store while the server's own folder still contains files."""
    if (root / BLOBS).exists() and FolderStore(root).kept_before(float("inf")):
        raise MachineError(
            f"The folder {root / BLOBS} still contains files, but artifacts are configured to be stored in {name}.",
            hint="Copy the files there with the service's own tool, then rename that folder.",
        )


def check(found: str, digest: str) -> None:
    """Refuse a file that has changed since it was hashed.

    Raises:
        ArtifactError: If the digests differ.
    """
    if found != digest:
        raise ArtifactError(f"The file {digest[:12]}… changed on the server's disk.", hint="Upload it again.")


def read_pieces(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield a file in pieces of a given size."""
    with path.open("rb") as file:
        while piece := file.read(size_bytes):
            yield piece


def attachment(filename: str) -> str:
    """Return the header that makes a browser save a file under a name."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "_" for letter in filename)
    return 'attachment; filename="{}"'.format(plain.replace("\\", "_").replace('"', "_"))


def store_error(
    name: str, code: str, status: int, detail: str, *, passes: bool, check: str, variables: str
) -> TunefleetError:
    """Return the exception for a service's error.

    Args:
        name: Name of the store, such as `s3://bucket/prefix`.
        status: HTTP status; 0 without a response.
    """
    if code in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE:
        return NoRoomError(
            f"The artifact store {name} is full ({code}).",
            hint="Raise its quota or delete old artifacts. Interrupted uploads are kept and resume.",
            detail=detail,
        )
    if passes or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER:
        return UnreachableError(
            f"The artifact store {name} is unavailable: {code}.",
            hint=f"Check {check}, or try again later.",
            detail=detail,
        )
    if code in _CLOCK:
        hint = "The clocks of this server and the store differ too much: synchronize them with NTP."
    elif code in _KEYS:
        hint = f"The keys are rejected, expired or lack permissions: update {variables} and restart the server."
    elif code in _NO_PLACE:
        hint = "Create it, or correct TUNEFLEET_ARTIFACTS."
    else:
        hint = f"Check the server's TUNEFLEET_ARTIFACTS, {variables} and their permissions."
    return MachineError(f"The artifact store {name} is unusable: {code}.", hint=hint, detail=detail)
