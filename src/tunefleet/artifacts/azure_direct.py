"""Files that arrive in a container of Azure in blocks, which become a blob when their list is committed.

A signature cannot say how long a block is, and lets write the whole arriving blob: what comes of it is read with its
ETag, and copied only as long as it has that one.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

from azure.core import MatchConditions
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobBlock, BlobSasPermissions, ContentSettings

from tunefleet.artifacts.direct import Arrivals, PartLink
from tunefleet.artifacts.remote import TYPE
from tunefleet.errors import UnreachableError

_LOOK_S: Final = 0.2
_COPY_BYTES_PER_S: Final = 4 << 20
_COPY_S: Final = 60.0


class AzureArrivals(Arrivals):
    """Arriving files in a container.

    Args:
        sign: Returns a signature for a blob, a permission and a time in seconds.
    """

    def __init__(self, container: Any, place: str, sign: Callable[[Any, BlobSasPermissions, int], str]) -> None:
        self._container, self._place, self._sign = container, place, sign

    def begin(self, name: str) -> str:  # noqa: ARG002 only S3 names an upload
        """Do nothing: the first block begins it."""
        return ""

    def parts(self, name: str, ref: str) -> dict[int, int] | None:  # noqa: ARG002 only S3 names an upload
        """Return the blocks that are there; null if they are a blob already."""
        blob = self._blob(name)
        try:
            committed, waiting = blob.get_block_list("all")
        except ResourceNotFoundError:
            return {}  # not one block has come
        if committed or blob.exists():
            return None
        numbers = {_block(number): number for number in range(1, len(waiting) + 1_001)}
        return {numbers[block.id]: int(block.size) for block in waiting if block.id in numbers}

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:  # noqa: ARG002 only S3 names an upload
        """Return a link that takes one block."""
        blob = self._blob(name)
        signature = self._sign(blob, BlobSasPermissions(create=True, write=True), good_s)
        return PartLink(f"{blob.url}?comp=block&blockid={quote(_wire(number), safe='')}&{signature}")

    def assemble(self, name: str, ref: str, count: int) -> None:  # noqa: ARG002 only S3 names an upload
        """Commit the list of blocks."""
        blocks = [BlobBlock(block_id=_block(number)) for number in range(1, count + 1)]
        self._blob(name).commit_block_list(blocks, content_settings=ContentSettings(content_type=TYPE))

    def version(self, name: str) -> tuple[str, int]:
        """Return ETag and length of the blob."""
        found = self._blob(name).get_blob_properties()
        return str(found.etag), int(found.size)

    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the blob's content."""
        only = {"etag": version, "match_condition": MatchConditions.IfNotModified}
        stream = self._blob(name).download_blob(max_concurrency=1, **only)
        yield from stream.chunks()

    def copy(self, name: str, version: str, key: str) -> None:
        """Let the service copy the blob, and wait until it has."""
        source, target = self._blob(name), self._container.get_blob_client(key)
        size_bytes = int(source.get_blob_properties().size)
        link = f"{source.url}?{self._sign(source, BlobSasPermissions(read=True), 3600)}"
        only = {"source_etag": version, "source_match_condition": MatchConditions.IfNotModified}
        status = target.start_copy_from_url(link, **only)["copy_status"]
        deadline = time.monotonic() + _COPY_S + size_bytes / _COPY_BYTES_PER_S
        while status == "pending" and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            status = target.get_blob_properties().copy.status
        if status != "success":
            # Nobody may take an unfinished copy for the file.
            target.delete_blob()
            raise UnreachableError(f"Azure does not copy an arriving file: its copy is {status}.", hint="Try again.")

    def discard(self, name: str, ref: str) -> None:  # noqa: ARG002 only S3 names an upload
        """Delete the blob; blocks that were not committed go with it."""
        blob = self._blob(name)
        try:
            if not blob.exists():
                # Only a blob can be deleted, and an empty list of blocks makes one.
                blob.get_block_list("uncommitted")
                blob.commit_block_list([])
            blob.delete_blob()
        except ResourceNotFoundError:
            return

    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield blobs that were left; blocks without one are dropped by Azure after a week."""
        place = f"{self._place}/"
        for each in self._container.list_blobs(name_starts_with=place):
            if each.last_modified.timestamp() <= limit:
                yield each.name.removeprefix(place), ""

    def _blob(self, name: str) -> Any:
        return self._container.get_blob_client(f"{self._place}/{name}")


def _block(number: int) -> str:
    return f"{number:08d}"


def _wire(number: int) -> str:
    return b64encode(_block(number).encode()).decode()
