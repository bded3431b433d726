"""Content-addressed files in an Azure Blob Storage container: `az://<container>/<prefix>/blobs/ab/<digest>`.

Large files are sent in blocks, each with a checksum that the service verifies; the file exists once its block list is
committed. A link carries a signature (SAS) that grants read access to this one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tunefleet import errors
from tunefleet.artifacts.direct import Arrivals, PartLink
from tunefleet.artifacts.remote import (
    LINK_S,
    TYPE,
    ListedObject,
    RemoteStore,
    attachment,
    check,
    read_pieces,
    store_error,
)
from tunefleet.errors import MachineError, UnreachableError

try:
    from azure.core import MatchConditions
    from azure.core.exceptions import AzureError, ResourceNotFoundError
    from azure.storage.blob import (
        BlobBlock,
        BlobSasPermissions,
        BlobServiceClient,
        ContentSettings,
        ExponentialRetry,
        generate_blob_sas,
    )

except ImportError as missing:
    raise MachineError(
        "Artifacts in Azure require the package azure-storage-blob.",
        hint=f"Install it: {errors.install_command('azure')}",
    ) from missing

_BLOCK_BYTES: Final = 16 << 20
_MAX_BLOCKS: Final = 45_000
_SKEW: Final = timedelta(minutes=15)
"""Links are valid from this long ago: the service's clock may be behind ours."""
_ANSWERS: Final = {"BlobNotFound", "ResourceNotFound"}
_LOOK_S: Final = 0.2
_COPY_BYTES_PER_S: Final = 4 << 20
_COPY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Container:
    """The container of the files."""

    name: str
    connection: str = field(repr=False)
    prefix: str = ""

    def __repr__(self) -> str:
        return f"az://{'/'.join(filter(None, (self.name, self.prefix)))}"


class AzureStore(RemoteStore):
    """Content-addressed files in a container; one process at a time may delete from a prefix.

    Raises:
        MachineError: If the container or key is unusable, or the local folder still contains files.
        UnreachableError: If the service does not respond.
    """

    def __init__(self, root: Path, container: Container, *, link_s: int = LINK_S) -> None:
        super().__init__(root, repr(container), container.prefix, link_s=link_s)
        try:
            self._service: Any = BlobServiceClient.from_connection_string(
                container.connection,
                max_single_put_size=_BLOCK_BYTES,
                retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=2),
                connection_timeout=5,
            )
            self._key_of_account = str(self._service.credential.account_key)
        except (AttributeError, ValueError) as error:
            raise MachineError(
                "AZURE_STORAGE_CONNECTION_STRING contains no account key.",
                hint="Copy it from the account's access keys: links are signed with the key.",
            ) from error
        self._container: Any = self._service.get_container_client(container.name)
        with self._explained():
            next(iter(self._container.list_blob_names(name_starts_with=f"{self._prefix}/", results_per_page=1)), None)
        self._take_direct(AzureArrivals(self._container, self._arriving_place, self._signature))

    def close(self) -> None:
        """Finish running uploads; pending deletions are repeated by the next collection."""
        super().close()
        self._service.close()

    def _head(self, key: str) -> int | None:
        try:
            return int(self._container.get_blob_client(key).get_blob_properties().size)
        except ResourceNotFoundError as error:
            if _error_code(error) in _ANSWERS:
                return None
            raise

    def _url(self, key: str, filename: str) -> str:
        blob = self._container.get_blob_client(key)
        # A browser must never run what a user stored.
        how = {"content_type": TYPE, "content_disposition": attachment(filename)}
        return f"{blob.url}?{self._signature(blob, BlobSasPermissions(read=True), self._link_s, **how)}"

    def _signature(self, blob: Any, permission: BlobSasPermissions, good_s: int, **how: Any) -> str:
        now = datetime.now(UTC)
        return generate_blob_sas(
            account_name=blob.account_name,
            container_name=blob.container_name,
            blob_name=blob.blob_name,
            account_key=self._key_of_account,
            permission=permission,
            start=now - _SKEW,
            expiry=now + timedelta(seconds=good_s),
            **how,
        )

    def _read(self, key: str) -> Iterator[bytes]:
        stream = self._container.get_blob_client(key).download_blob(max_concurrency=1)
        for chunk in stream.chunks():
            # The library's chunks are larger than a store's pieces.
            yield from (chunk[start : start + (1 << 20)] for start in range(0, len(chunk), 1 << 20))

    def _listed(self) -> Iterator[ListedObject]:
        for each in self._container.list_blobs(name_starts_with=f"{self._prefix}/"):
            yield ListedObject(each.name, int(each.size), each.last_modified.timestamp())

    def _send(self, part: Path, key: str, digest: str) -> None:
        blob, size_bytes = self._container.get_blob_client(key), part.stat().st_size
        settings = ContentSettings(content_type=TYPE)
        if size_bytes <= _BLOCK_BYTES:
            body = part.read_bytes()
            check(hashlib.sha256(body).hexdigest(), digest)
            blob.upload_blob(body, overwrite=True, validate_content=True, content_settings=settings)
            return
        found, blocks = hashlib.sha256(), []
        for number, body in enumerate(read_pieces(part, max(_BLOCK_BYTES, -(-size_bytes // _MAX_BLOCKS)))):
            found.update(body)
            # The block name contains its hash: two servers that send the same file must not mix their blocks.
            name = b64encode(f"{number:06d}-{hashlib.sha256(body).hexdigest()[:32]}".encode()).decode()
            blob.stage_block(name, body, length=len(body), validate_content=True)
            blocks.append(BlobBlock(block_id=name))
        check(found.hexdigest(), digest)
        blob.commit_block_list(blocks, content_settings=settings)

    def _remove(self, key: str) -> None:
        with contextlib.suppress(ResourceNotFoundError):
            self._container.get_blob_client(key).delete_blob()

    def _sweep_there(self, limit: float) -> None:
        """Do nothing: Azure drops uncommitted blocks after a week."""

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AzureError as error:
            status = int(getattr(error, "status_code", None) or 0)
            raise store_error(
                self.name, _error_code(error), status, str(error), passes=not status,
                check="AZURE_STORAGE_CONNECTION_STRING", variables="AZURE_STORAGE_CONNECTION_STRING",
            ) from error  # fmt: skip


def _error_code(error: Exception) -> str:
    word = getattr(error, "error_code", None) or getattr(error, "status_code", None) or type(error).__name__
    return str(getattr(word, "value", word))


class AzureArrivals(Arrivals):
    """Direct uploads to a container.

    Args:
        sign: Returns a signature for a blob, a permission and a lifetime in seconds.
    """

    def __init__(self, container: Any, place: str, sign: Callable[[Any, BlobSasPermissions, int], str]) -> None:
        self._container, self._place, self._sign = container, place, sign

    def begin(self, name: str) -> str:  # noqa: ARG002 only S3 has upload ids
        """Do nothing: the first block starts the upload."""
        return ""

    def parts(self, name: str, ref: str) -> dict[int, int] | None:  # noqa: ARG002 only S3 has upload ids
        """Return the stored blocks; `None` if they are committed already."""
        blob = self._blob(name)
        try:
            committed, waiting = blob.get_block_list("all")
        except ResourceNotFoundError:
            return {}  # no block is stored yet
        if committed or blob.exists():
            return None
        numbers = {_block(number): number for number in range(1, len(waiting) + 1_001)}
        return {numbers[block.id]: int(block.size) for block in waiting if block.id in numbers}

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:  # noqa: ARG002 only S3 has upload ids
        """Return a link that accepts one block."""
        blob = self._blob(name)
        signature = self._sign(blob, BlobSasPermissions(create=True, write=True), good_s)
        return PartLink(f"{blob.url}?comp=block&blockid={quote(_wire(number), safe='')}&{signature}")

    def assemble(self, name: str, ref: str, count: int) -> None:  # noqa: ARG002 only S3 has upload ids
        """Commit the block list."""
        blocks = [BlobBlock(block_id=_block(number)) for number in range(1, count + 1)]
        self._blob(name).commit_block_list(blocks, content_settings=ContentSettings(content_type=TYPE))

    def version(self, name: str) -> tuple[str, int]:
        """Return ETag and size of the blob."""
        found = self._blob(name).get_blob_properties()
        return str(found.etag), int(found.size)

    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the blob's content."""
        only = {"etag": version, "match_condition": MatchConditions.IfNotModified}
        stream = self._blob(name).download_blob(max_concurrency=1, **only)
        yield from stream.chunks()

    def copy(self, name: str, version: str, key: str) -> None:
        """Copy the blob within the service, and wait for the copy."""
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
            # An unfinished copy must not be mistaken for the file.
            target.delete_blob()
            raise UnreachableError(
                f"Azure did not copy an uploaded file: the copy status is {status}.", hint="Try again."
            )

    def discard(self, name: str, ref: str) -> None:  # noqa: ARG002 only S3 has upload ids
        """Delete the blob with its uncommitted blocks."""
        blob = self._blob(name)
        try:
            if not blob.exists():
                # Only a blob can be deleted: committing an empty block list creates one.
                blob.get_block_list("uncommitted")
                blob.commit_block_list([])
            blob.delete_blob()
        except ResourceNotFoundError:
            return

    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield abandoned blobs; Azure drops uncommitted blocks after a week."""
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
