"""Files that workers send to a service themselves, in parts, without a way through the server.

    <prefix>/arriving/<id>   where the parts go, and where they become one object

A link lets write one part of one arriving file, never an object under a digest: the server reads the whole object back
and lets the service copy it to the name that its digest gives, if it has that digest. No service checks the sha256 of
a file that came in parts: S3 has a digest of the parts' digests, Azure none, Google a CRC.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from tunefleet.errors import ArtifactError, ConflictError

# So large a part is, or larger if there were too many; it is sent from the disk, never held in memory.
PART_BYTES: Final = 16 << 20
MOST_PARTS: Final = 1000
ARRIVING: Final = "arriving"


@dataclass(frozen=True, slots=True)
class PartLink:
    """An address that takes one part for a while; it is a secret of its own."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


class Arrivals(ABC):
    """What a service does for files that arrive in parts. Blocks; errors are the service's own.

    `name` is the id of an arriving file, `ref` what `begin` returned for it.
    """

    @abstractmethod
    def begin(self, name: str) -> str:
        """Prepare for a file; returns what the service calls that."""

    @abstractmethod
    def parts(self, name: str, ref: str) -> dict[int, int] | None:
        """Return number and length of the parts that are there; null if they are one object already.

        Raises:
            NotFoundError: If the service knows nothing of the file any more.
        """

    @abstractmethod
    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:
        """Return a link that takes one part."""

    @abstractmethod
    def assemble(self, name: str, ref: str, count: int) -> None:
        """Make one object of the parts 1 to `count`."""

    @abstractmethod
    def version(self, name: str) -> tuple[str, int]:
        """Return what the service calls the object as it is now, and its length."""

    @abstractmethod
    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the object's content; fails if it is not that version any more."""

    @abstractmethod
    def copy(self, name: str, version: str, key: str) -> None:
        """Let the service copy the object to a key; fails if it is not that version any more."""

    @abstractmethod
    def discard(self, name: str, ref: str) -> None:
        """Remove all of a file; one that is not there counts as removed."""

    @abstractmethod
    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield name and ref of the files of which something was begun before a Unix time."""


class DirectUploads:
    """Lets workers send files to a service.

    Args:
        place: Called with a digest, a length in bytes and what copies to a key: makes the file the store's own.
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
        """Prepare for a file; returns its ref.

        Raises:
            UnreachableError: If the service does not answer; so does every other method.
            MachineError: If it refuses.
        """
        with self._explained():
            return self._arrivals.begin(name)

    def parts(self, name: str, ref: str, sizes: list[int]) -> set[int]:
        """Return the numbers of the parts that are there as they should be.

        Raises:
            NotFoundError: If nothing is known of the file any more.
        """
        with self._explained():
            found = self._arrivals.parts(name, ref)
        if found is None:
            return set(range(1, len(sizes) + 1))
        return {number for number, size in enumerate(sizes, start=1) if found.get(number) == size}

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:
        """Return a link that takes one part, for so many seconds."""
        with self._explained():
            return self._arrivals.link(name, ref, number, size_bytes, good_s)

    def finish(self, name: str, ref: str, sizes: list[int], digest: str) -> None:
        """Make a file of its parts, and keep it if it has its digest; may be repeated, also after a crash within.

        Raises:
            ConflictError: If parts lack.
            ArtifactError: If it is not what was announced; what was sent is thrown away.
            NotFoundError: If nothing is known of the file any more.
        """
        here = self.parts(name, ref, sizes)
        if len(here) < len(sizes):
            raise ConflictError(f"{len(sizes) - len(here)} of {len(sizes)} parts of {digest[:12]}… are not there.")
        with self._explained():
            if self._arrivals.parts(name, ref) is not None:
                self._arrivals.assemble(name, ref, len(sizes))
            version, size_bytes = self._arrivals.version(name)
            right = size_bytes == sum(sizes) and self._digest(name, version) == digest
        if not right:
            self.discard(name, ref)
            raise ArtifactError(
                f"The upload of {digest[:12]}… does not have the digest that was announced.",
                hint="The file changed or was damaged on the way; upload it again from the start.",
            )

        def copy(key: str) -> None:
            self._arrivals.copy(name, version, key)

        self._place(digest, size_bytes, copy)
        self.discard(name, ref)

    def discard(self, name: str, ref: str) -> None:
        """Remove all of a file."""
        with self._explained():
            self._arrivals.discard(name, ref)

    def sweep(self, limit: float, spare: Collection[str]) -> int:
        """Remove files that were begun before a Unix time and that nobody knows."""
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
    """Return how long the parts of a file are."""
    return max(PART_BYTES, -(-size_bytes // MOST_PARTS))


def sizes_of(size_bytes: int, part_bytes: int) -> list[int]:
    """Return the lengths of a file's parts, in order."""
    return [min(part_bytes, size_bytes - start) for start in range(0, size_bytes, part_bytes)]
