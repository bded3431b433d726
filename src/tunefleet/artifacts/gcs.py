"""Content-addressed files in a Google Cloud Storage bucket: `gs://<bucket>/<prefix>/blobs/ab/<digest>`.

A large file is sent as one resumable upload, whose interrupted pieces the library sends again; each upload carries a
checksum that the service verifies. Links are signed locally with the key of a service account.

Direct uploads send each part as an object, which the service composes to one: parts are sent in parallel, with links
that are valid for minutes. A resumable session would accept one piece after another, with a link that is valid for a
week.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final

from tunefleet import errors
from tunefleet.artifacts.direct import Arrivals, PartLink
from tunefleet.artifacts.remote import LINK_S, TYPE, ListedObject, RemoteStore, attachment, check, store_error
from tunefleet.errors import MachineError
from tunefleet.fsutil import CHUNK_BYTES

try:
    from google.api_core.exceptions import GoogleAPICallError, NotFound, RetryError
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.cloud import storage
    from google.cloud.storage.retry import DEFAULT_RETRY
    from google.oauth2.service_account import Credentials

except ImportError as missing:
    raise MachineError(
        "Artifacts in Google Cloud Storage require the package google-cloud-storage.",
        hint=f"Install it: {errors.install_command('gcs')}",
    ) from missing
_TIMEOUT_S: Final = 60
_RETRY: Any = DEFAULT_RETRY.with_timeout(20.0)
_RESUMABLE_BYTES: Final = 16 << 20
# The service composes at most this many objects per request.
_AT_ONCE: Final = 32
_WHOLE: Final = "whole"
_COMPOSE_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class GcsBucket:
    """The bucket of the files.

    Args:
        endpoint: URL of an emulator, which is used without a key; `None` for Google.
    """

    name: str
    key_file: Path
    prefix: str = ""
    endpoint: str | None = None

    def __repr__(self) -> str:
        return f"gs://{'/'.join(filter(None, (self.name, self.prefix)))}"


class GcsStore(RemoteStore):
    """Content-addressed files in a Google bucket; one process at a time may delete from a prefix.

    Raises:
        MachineError: If the bucket or key is unusable, or the local folder still contains files.
        UnreachableError: If the service does not respond.
    """

    def __init__(self, root: Path, bucket: GcsBucket, *, link_s: int = LINK_S) -> None:
        super().__init__(root, repr(bucket), bucket.prefix, link_s=link_s)
        self._signer = _credentials(bucket.key_file)
        asker = AnonymousCredentials() if bucket.endpoint else self._signer  # type: ignore[no-untyped-call]
        options = {"api_endpoint": bucket.endpoint} if bucket.endpoint else None
        self._endpoint = bucket.endpoint
        self._client: Any = storage.Client(project=self._signer.project_id, credentials=asker, client_options=options)
        self._bucket: Any = self._client.bucket(bucket.name)
        with self._explained():
            next(
                iter(self._client.list_blobs(self._bucket, prefix=f"{self._prefix}/", max_results=1, retry=_RETRY)),
                None,
            )
        place = self._arriving_place
        self._take_direct(GcsArrivals(self._client, self._bucket, place, self._link_to_put, _RETRY))

    def close(self) -> None:
        """Finish running uploads; pending deletions are repeated by the next collection."""
        super().close()
        self._client.close()

    def _head(self, key: str) -> int | None:
        found = self._bucket.get_blob(key, timeout=_TIMEOUT_S, retry=_RETRY)
        return None if found is None else int(found.size)

    def _url(self, key: str, filename: str) -> str:
        return str(
            self._bucket.blob(key).generate_signed_url(
                version="v4",
                expiration=timedelta(seconds=self._link_s),
                credentials=self._signer,
                api_access_endpoint=self._endpoint or "https://storage.googleapis.com",
                # A browser must never run what a user stored.
                response_type=TYPE,
                response_disposition=attachment(filename),
            )
        )

    def _link_to_put(self, blob: Any, headers: dict[str, str], good_s: int) -> str:
        return str(
            blob.generate_signed_url(
                version="v4",
                method="PUT",
                expiration=timedelta(seconds=good_s),
                credentials=self._signer,
                api_access_endpoint=self._endpoint or "https://storage.googleapis.com",
                headers=headers,
            )
        )

    def _read(self, key: str) -> Iterator[bytes]:
        with self._bucket.blob(key).open("rb", chunk_size=CHUNK_BYTES) as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def _listed(self) -> Iterator[ListedObject]:
        for each in self._client.list_blobs(self._bucket, prefix=f"{self._prefix}/", timeout=_TIMEOUT_S, retry=_RETRY):
            yield ListedObject(each.name, int(each.size), each.updated.timestamp())

    def _send(self, part: Path, key: str, digest: str) -> None:
        blob = self._bucket.blob(key, chunk_size=_RESUMABLE_BYTES)
        with part.open("rb") as raw:
            file = _Hashed(raw, part.stat().st_size, digest)
            blob.upload_from_file(
                file, size=file.size_bytes, content_type=TYPE, checksum="crc32c", timeout=_TIMEOUT_S, retry=_RETRY
            )

    def _remove(self, key: str) -> None:
        with contextlib.suppress(NotFound):
            self._bucket.blob(key).delete(timeout=_TIMEOUT_S, retry=_RETRY)

    def _sweep_there(self, limit: float) -> None:
        """Do nothing: Google drops resumable uploads after a week."""

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (GoogleAPICallError, GoogleAuthError, RetryError, OSError) as error:
            # Connection errors of the underlying library are OSErrors, too; errors of a local file are Python's own.
            if type(error).__module__ == "builtins" and not isinstance(error, ConnectionError | TimeoutError):
                raise
            status = int(getattr(error, "code", None) or 0) if isinstance(error, GoogleAPICallError) else 0
            passes = isinstance(error, RetryError | TransportError | OSError)
            code = _error_code(error, status)
            raise store_error(
                self.name, code, status, str(error),
                passes=passes, check="the network", variables="GOOGLE_APPLICATION_CREDENTIALS",
            ) from error  # fmt: skip


class _Hashed:
    """A file that is hashed while it is read, and fails before its last piece if the digest does not match."""

    def __init__(self, raw: IO[bytes], size_bytes: int, digest: str) -> None:
        self._raw, self._digest, self.size_bytes = raw, digest, size_bytes
        self._hash, self._hashed = hashlib.sha256(), 0

    def read(self, count: int = -1) -> bytes:
        start, piece = self._raw.tell(), self._raw.read(count)
        # An interrupted piece is read and sent again: hash only new bytes.
        fresh = memoryview(piece)[max(0, self._hashed - start) :]
        self._hash.update(fresh)
        self._hashed += len(fresh)
        # A completed object cannot be taken back, so the check must come before the last piece is sent.
        if self._hashed >= self.size_bytes:
            check(self._hash.hexdigest(), self._digest)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()


def _credentials(key_file: Path) -> Any:
    try:
        return Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
            str(key_file), scopes=["https://www.googleapis.com/auth/devstorage.read_write"]
        )
    except (OSError, ValueError) as error:
        raise MachineError(
            f"GOOGLE_APPLICATION_CREDENTIALS={key_file} is not a service account key: {type(error).__name__}.",
            hint="Use the JSON key file of a service account: links are signed with it.",
            detail=str(error),
        ) from error


def _error_code(error: Exception, status: int) -> str:
    if not isinstance(error, GoogleAPICallError):
        return type(error).__name__
    reasons = {str(each.get("reason")) for each in error.errors if isinstance(each, dict)}
    if reasons & {"quotaExceeded", "insufficientStorage"}:
        return "QuotaExceeded"
    # Missing objects are handled elsewhere: a NotFound here means the bucket.
    return "NoSuchBucket" if isinstance(error, NotFound) else str(status)


class GcsArrivals(Arrivals):
    """Direct uploads to a bucket.

    Args:
        sign: Returns a link to `PUT` an object with headers, valid for a number of seconds.
    """

    def __init__(
        self, client: Any, bucket: Any, place: str, sign: Callable[[Any, dict[str, str], int], str], retry: Any
    ) -> None:
        self._client, self._bucket, self._place, self._sign = client, bucket, place, sign
        self._patience: dict[str, Any] = {"timeout": _COMPOSE_TIMEOUT_S, "retry": retry}

    def begin(self, name: str) -> str:  # noqa: ARG002 only S3 has upload ids
        """Do nothing: each part is an object."""
        return ""

    def parts(self, name: str, ref: str) -> dict[int, int] | None:  # noqa: ARG002 only S3 has upload ids
        """Return the stored parts; `None` if they are composed already."""
        found = {each.name.rpartition("/")[2]: int(each.size) for each in self._listed(f"{name}/")}
        if _WHOLE in found:
            return None
        return {int(number): size for number, size in found.items() if number.isdigit()}

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:  # noqa: ARG002 only S3 has upload ids
        """Return a link that accepts one part of exactly this size."""
        headers = {"x-goog-content-length-range": f"{size_bytes},{size_bytes}"}
        return PartLink(self._sign(self._blob(f"{name}/{number:08d}"), headers, good_s), headers)

    def assemble(self, name: str, ref: str, count: int) -> None:  # noqa: ARG002 only S3 has upload ids
        """Compose the parts, in several levels if there are many."""
        level, blobs = 0, [self._blob(f"{name}/{number:08d}") for number in range(1, count + 1)]
        while len(blobs) > _AT_ONCE:
            groups = [blobs[start : start + _AT_ONCE] for start in range(0, len(blobs), _AT_ONCE)]
            blobs = [self._compose(f"{name}/of-{level}-{at}", group) for at, group in enumerate(groups)]
            level += 1
        self._compose(f"{name}/{_WHOLE}", blobs)

    def version(self, name: str) -> tuple[str, int]:
        """Return generation and size of the object."""
        blob = self._blob(f"{name}/{_WHOLE}")
        blob.reload(**self._patience)
        return str(blob.generation), int(blob.size)

    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the object's content."""
        blob = self._blob(f"{name}/{_WHOLE}")
        with blob.open("rb", chunk_size=16 * CHUNK_BYTES, if_generation_match=int(version)) as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def copy(self, name: str, version: str, key: str) -> None:
        """Copy the object within the service, in as many steps as needed."""
        source, target, token = self._blob(f"{name}/{_WHOLE}"), self._bucket.blob(key), None
        while True:
            token, _, _ = target.rewrite(source, token=token, if_source_generation_match=int(version), **self._patience)
            if token is None:
                return

    def discard(self, name: str, ref: str) -> None:  # noqa: ARG002 only S3 has upload ids
        """Delete the parts and the composed objects."""
        for each in list(self._listed(f"{name}/")):
            with contextlib.suppress(NotFound):
                each.delete(**self._patience)

    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield uploads with an old object."""
        for each in self._listed(""):
            if each.updated.timestamp() <= limit:
                yield each.name.removeprefix(f"{self._place}/").partition("/")[0], ""

    def _compose(self, name: str, blobs: list[Any]) -> Any:
        made = self._blob(name)
        made.content_type = TYPE
        made.compose(blobs, **self._patience)
        return made

    def _listed(self, begin: str) -> Iterator[Any]:
        yield from self._client.list_blobs(self._bucket, prefix=f"{self._place}/{begin}", **self._patience)

    def _blob(self, name: str) -> Any:
        return self._bucket.blob(f"{self._place}/{name}")
