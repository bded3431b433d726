"""Files named by their digest in a container of Azure Blob Storage.

    az://<container>/<prefix>/blobs/ab/<digest>

A large file goes in blocks, each with a checksum that the service compares, and is there once its list of blocks is
committed. A link carries a signature (SAS) of the account's key that lets read this one file.
"""

from __future__ import annotations

import contextlib
import hashlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tunefleet import errors
from tunefleet.artifacts.refusals import in_our_words
from tunefleet.artifacts.remote import LINK_S, TYPE, Found, RemoteStore, attachment, check, read_pieces
from tunefleet.errors import MachineError

try:
    from azure.core.exceptions import AzureError, ResourceNotFoundError
    from azure.storage.blob import (
        BlobBlock,
        BlobSasPermissions,
        BlobServiceClient,
        ContentSettings,
        ExponentialRetry,
        generate_blob_sas,
    )

    from tunefleet.artifacts.azure_direct import AzureArrivals
except ImportError as missing:
    raise MachineError(
        "Artifacts in Azure need the package azure-storage-blob.", hint=f"Install it: {errors.install('azure')}"
    ) from missing

_BLOCK_BYTES: Final = 16 << 20
_MAX_BLOCKS: Final = 45_000
_SKEW: Final = timedelta(minutes=15)
"""A link is good from so long ago: the clock of the service may be behind ours."""
_ANSWERS: Final = {"BlobNotFound", "ResourceNotFound"}


@dataclass(frozen=True, slots=True)
class Container:
    """Where files are kept."""

    name: str
    connection: str = field(repr=False)
    prefix: str = ""

    def __repr__(self) -> str:
        return f"az://{'/'.join(filter(None, (self.name, self.prefix)))}"


class AzureStore(RemoteStore):
    """Content-addressed files in a container; one process at a time may delete from a prefix.

    Raises:
        MachineError: If the container or the key cannot be used, or the folder still holds files.
        UnreachableError: If the service does not answer.
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
                "AZURE_STORAGE_CONNECTION_STRING is none with an account's key.",
                hint="Copy it from the account's access keys: links are signed with the key.",
            ) from error
        self._container: Any = self._service.get_container_client(container.name)
        with self._explained():
            next(iter(self._container.list_blob_names(name_starts_with=f"{self._prefix}/", results_per_page=1)), None)
        self._take_direct(AzureArrivals(self._container, self._arriving_place, self._signature))

    def close(self) -> None:
        """Finish what is being sent; what is left to delete is found at the next collection."""
        super().close()
        self._service.close()

    def _head(self, key: str) -> int | None:
        try:
            return int(self._container.get_blob_client(key).get_blob_properties().size)
        except ResourceNotFoundError as error:
            if _word(error) in _ANSWERS:
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
            # The library's own pieces are larger than a store's.
            yield from (chunk[start : start + (1 << 20)] for start in range(0, len(chunk), 1 << 20))

    def _listed(self) -> Iterator[Found]:
        for each in self._container.list_blobs(name_starts_with=f"{self._prefix}/"):
            yield Found(each.name, int(each.size), each.last_modified.timestamp())

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
            # Two servers that send the same file must not mix their blocks; a name says which bytes it is.
            name = b64encode(f"{number:06d}-{hashlib.sha256(body).hexdigest()[:32]}".encode()).decode()
            blob.stage_block(name, body, length=len(body), validate_content=True)
            blocks.append(BlobBlock(block_id=name))
        check(found.hexdigest(), digest)
        blob.commit_block_list(blocks, content_settings=settings)

    def _remove(self, key: str) -> None:
        with contextlib.suppress(ResourceNotFoundError):
            self._container.get_blob_client(key).delete_blob()

    def _sweep_there(self, limit: float) -> None:
        """Do nothing: Azure drops blocks that nobody committed by itself, after a week."""

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AzureError as error:
            status = int(getattr(error, "status_code", None) or 0)
            raise in_our_words(
                self.name, _word(error), status, str(error), passes=not status,
                check="AZURE_STORAGE_CONNECTION_STRING", variables="AZURE_STORAGE_CONNECTION_STRING",
            ) from error  # fmt: skip


def _word(error: Exception) -> str:
    word = getattr(error, "error_code", None) or getattr(error, "status_code", None) or type(error).__name__
    return str(getattr(word, "value", word))
