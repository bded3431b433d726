"""Direct uploads: workers send files in parts to an object store, bypassing the server.

Parts are collected under `<prefix>/arriving/<id>` and assembled to one object there. A link allows writing one part of
one upload, never an object under a digest: the server reads the complete object back, and lets the service copy it to
its final name only if the digest matches. No service verifies the SHA-256 of a multipart file: S3 has a digest of the
parts' digests, Azure none, Google a CRC.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from tunefleet.errors import ArtifactError, ConflictError

# Part size, larger if there would be too many parts; parts are streamed from disk, never held in memory.
PART_BYTES: Final = 16 << 20
MOST_PARTS: Final = 1000
ARRIVING: Final = "arriving"


@dataclass(frozen=True, slots=True)
class PartLink:
    """A temporary URL that accepts one part; the URL itself is a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


class Arrivals(ABC):
    """Operations of a service for multipart uploads. Blocking; raises the service's own errors.

    `name` is the id of an upload, `ref` the value that `begin` returned for it.
    """

    @abstractmethod
    def begin(self, name: str) -> str:
        """Start an upload; returns the service's id of it."""

    @abstractmethod
    def parts(self, name: str, ref: str) -> dict[int, int] | None:
        """Return number and size of the stored parts; `None` if they are assembled already.

        Raises:
            NotFoundError: If the service no longer knows the upload.
        """

    @abstractmethod
    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:
        """Return a link that accepts one part."""

    @abstractmethod
    def assemble(self, name: str, ref: str, count: int) -> None:
        """Assemble the parts 1 to `count` to one object."""

    @abstractmethod
    def version(self, name: str) -> tuple[str, int]:
        """Return the object's current version id and size."""

    @abstractmethod
    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the object's content; fails if its version has changed."""

    @abstractmethod
    def copy(self, name: str, version: str, key: str) -> None:
        """Copy the object to a key within the service; fails if its version has changed."""

    @abstractmethod
    def discard(self, name: str, ref: str) -> None:
        """Delete everything of an upload; a missing one counts as deleted."""

    @abstractmethod
    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield name and ref of uploads that were started before a Unix time."""


class DirectUploads:
    """Direct uploads to a service.

    Args:
        place: Adopts a file into the store; called with digest, size and a function that copies it to a key.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        explained: Callable[[], AbstractContextManager[None]],
        place: Callable[[str, int, Callable[[str], None]], None],
    ) -> None:
        self._arrivals = arrivals
        self._explained = explained
        self._place = place

    def begin(self, name: str) -> str:
        """Start an upload; returns its ref.

        Raises:
            UnreachableError: If the service is unreachable; every other method raises it, too.
            MachineError: If the service refuses.
        """
        with self._explained():
            return self._arrivals.begin(name)

    def parts(self, name: str, ref: str, sizes: list[int]) -> set[int]:
        """Return the numbers of the parts that are stored with the right size.

        Raises:
            NotFoundError: If the upload is no longer known.
        """
        with self._explained():
            found = self._arrivals.parts(name, ref)
        if found is None:
            return set(range(1, len(sizes) + 1))
        return {number for number, size in enumerate(sizes, start=1) if found.get(number) == size}

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:
        """Return a link that accepts one part for `good_s` seconds."""
        with self._explained():
            return self._arrivals.link(name, ref, number, size_bytes, good_s)

    def finish(self, name: str, ref: str, sizes: list[int], digest: str) -> None:
        """Assemble an upload and store it if the digest matches; idempotent, also after a crash.

        Raises:
            ConflictError: If parts are missing.
            ArtifactError: If the digest does not match; the upload is deleted.
            NotFoundError: If the upload is no longer known.
        """
        here = self.parts(name, ref, sizes)
        if len(here) < len(sizes):
            raise ConflictError(f"{len(sizes) - len(here)} of {len(sizes)} parts of {digest[:12]}… are missing.")
        with self._explained():
            if self._arrivals.parts(name, ref) is not None:
                self._arrivals.assemble(name, ref, len(sizes))
            # Verify and copy exactly this version: a link that is still valid could overwrite a part in between.
            version, size_bytes = self._arrivals.version(name)
            right = size_bytes == sum(sizes) and self._digest(name, version) == digest
        if not right:
            self.discard(name, ref)
            raise ArtifactError(
                f"The digest of upload {digest[:12]}… does not match.",
                hint="The file changed or was corrupted in transfer. Upload it again from the start.",
            )

        def copy(key: str) -> None:
            self._arrivals.copy(name, version, key)

        self._place(digest, size_bytes, copy)
        self.discard(name, ref)

    def discard(self, name: str, ref: str) -> None:
        """Delete an upload."""
        with self._explained():
            self._arrivals.discard(name, ref)

    def sweep(self, limit: float, spare: Collection[str]) -> int:
        """Delete uploads that were started before a Unix time and are not in `spare`."""
        with self._explained():
            old = dict(each for each in self._arrivals.old(limit) if each[0] not in spare)
            for name, ref in old.items():
                self._arrivals.discard(name, ref)
        return len(old)

    def _digest(self, name: str, version: str) -> str:
        found = hashlib.sha256()
        for piece in self._arrivals.read(name, version):
            found.update(piece)
        return found.hexdigest()


def part_bytes_of(size_bytes: int) -> int:
    """Return the part size for a file."""
    return max(PART_BYTES, -(-size_bytes // MOST_PARTS))


def sizes_of(size_bytes: int, part_bytes: int) -> list[int]:
    """Return the sizes of a file's parts, in order."""
    return [min(part_bytes, size_bytes - start) for start in range(0, size_bytes, part_bytes)]
