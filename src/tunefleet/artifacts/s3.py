"""Files named by their digest in a bucket of S3, or of anything that speaks its protocol.

    s3://<bucket>/<prefix>/blobs/ab/<digest>

Uploads gather in the server's folder, where they can break and go on, and go to the bucket once their digest is right:
what is sent is hashed again, and each request is signed with the digest of its bytes, which the other side checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from tunefleet.artifacts.blobs import BlobStore, Link, checked
from tunefleet.artifacts.files import CHUNK_BYTES
from tunefleet.artifacts.folder import BLOBS, FolderStore
from tunefleet.artifacts.manifest import is_digest
from tunefleet.errors import ArtifactError, MachineError, TunefleetError, UnreachableError

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as BotoConnectionError
except ImportError as missing:
    raise MachineError(
        "Artifacts in S3 need the package boto3.", hint="Install it: pip install 'tunefleet[s3]'."
    ) from missing

_log = logging.getLogger(__name__)

PART_BYTES: Final = 16 << 20
"""A larger file is sent in parts of this size, or of a larger one if there were too many."""
_MAX_PARTS: Final = 9_000
_LINK_S: Final = 900
_SENDERS: Final = 8
_REMEMBERED: Final = 65_536
ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_LATER: Final = frozenset({408, 429})
_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where files are kept.

    Args:
        name: Of the bucket.
        prefix: Before every key; may be empty.
        endpoint: URL of the service; null: Amazon's.
        public_endpoint: URL of the same service for who follows a link; null: the same.
        region: Null: what the environment says.
        access_key: Null: what the environment says, or the machine's role.
        secret_key: Belongs to the access key.
        session_token: Belongs to both, where they are temporary.
    """

    name: str
    prefix: str = ""
    endpoint: str | None = None
    public_endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"s3://{'/'.join(filter(None, (self.name, self.prefix)))}"

    def client(self, endpoint: str | None) -> Any:
        """Return a client of the service; it may be shared between threads."""
        session = boto3.session.Session(
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            aws_session_token=self.session_token,
            region_name=self.region,
        )
        config = Config(
            signature_version="s3v4",
            # Names of buckets as hosts work at Amazon's only; elsewhere they would need DNS entries.
            s3={"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": True},
            # Checksums of Amazon's own are refused elsewhere; the signed digest of each body says as much.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "max_attempts": 4},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=2 * _SENDERS,
        )
        return session.client("s3", endpoint_url=endpoint, config=config)


def entries(client: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield what a bucket says of each file whose name begins with a prefix.

    Args:
        client: Of boto3.
        bucket: Its name.
        prefix: May be empty.
    """
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from page.get("Contents", ())


class S3Store(BlobStore):
    """Content-addressed files in a bucket; one process at a time may delete from a prefix.

    Args:
        root: A folder for uploads that are on their way.
        bucket: Where the files go.
        link_s: How long a link is good, in seconds.

    Raises:
        MachineError: If the bucket cannot be used, or the folder still holds files of a server that kept them there.
        UnreachableError: If the service does not answer.
    """

    def __init__(self, root: Path, bucket: Bucket, *, link_s: int = _LINK_S) -> None:
        super().__init__(root)
        _refuse_two_places(root, bucket)
        self._bucket = bucket
        self._prefix = "/".join(filter(None, (bucket.prefix, BLOBS)))
        self._link_s = link_s
        with self._explained():
            self._client = bucket.client(bucket.endpoint)
            self._signer = bucket.client(bucket.public_endpoint) if bucket.public_endpoint else self._client
            self._client.list_objects_v2(Bucket=bucket.name, Prefix=f"{self._prefix}/", MaxKeys=1)
        self.executor = ThreadPoolExecutor(_SENDERS, thread_name_prefix="s3-send")
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="s3-delete")
        self._sizes: dict[str, int] = {}
        self._doomed: set[str] = set()
        self._arriving: Counter[str] = Counter()
        self._deleting: str | None = None
        self._deletions = 0
        self._may_list_parts = True
        # Held for what is remembered of objects, never for a request. One that arrives while it is deleted waits.
        self._order = threading.Condition()

    def close(self) -> None:
        """Finish what is being sent; what is left to delete is found at the next collection."""
        self._deleter.shutdown(cancel_futures=True)
        if self.executor is not None:
            self.executor.shutdown()
        self._client.close()

    def find(self, digest: str) -> int | None:
        """Return the length of a file in bytes; null if it is not in the bucket."""
        key = self._key(digest)
        with self._order:
            if digest in self._doomed:
                return None
            known, deletions = self._sizes.get(digest), self._deletions
        if known is not None:
            return known
        with self._explained():
            try:
                size_bytes = int(self._client.head_object(Bucket=self._bucket.name, Key=key)["ContentLength"])
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise
        with self._order:
            # What was deleted since it was asked for may be gone for good by now.
            if deletions == self._deletions:
                self._remember(digest, size_bytes)
        return size_bytes

    def source(self, digest: str, filename: str) -> Link:
        """Return a link to a file, good for some minutes.

        Raises:
            NotFoundError: If it is not in the bucket.
        """
        self.size(digest)
        with self._explained():
            url = self._signer.generate_presigned_url(
                "get_object",
                Params={
                    "Bucket": self._bucket.name,
                    "Key": self._key(digest),
                    # A browser must never run what a user stored.
                    "ResponseContentType": _TYPE,
                    "ResponseContentDisposition": _attachment(filename),
                },
                ExpiresIn=self._link_s,
            )
        return Link(url)

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file; raises as `source` does."""
        self.size(digest)
        with self._explained():
            body = self._client.get_object(Bucket=self._bucket.name, Key=self._key(digest))["Body"]
            with contextlib.closing(body):
                yield from body.iter_chunks(CHUNK_BYTES)

    def kept_before(self, at: float) -> dict[str, int]:
        """Return digest and size in bytes of each file that was kept before a Unix time."""
        found: dict[str, int] = {}
        with self._explained():
            for entry in entries(self._client, self._bucket.name, f"{self._prefix}/"):
                digest = entry["Key"].rpartition("/")[2]
                if is_digest(digest) and entry["LastModified"].timestamp() < at:
                    found[digest] = int(entry["Size"])
        return found

    def keep(self, part: Path, digest: str) -> None:
        """Send a file to the bucket.

        Raises:
            ArtifactError: If it is not any more what was hashed.
        """
        key, size_bytes, arrived = self._key(digest), part.stat().st_size, False
        with self._order:
            self._arriving[digest] += 1
            self._order.wait_for(lambda: self._deleting != digest)
        try:
            with self._explained():
                self._send(part, key, digest)
            arrived = True
        finally:
            with self._order:
                self._arriving -= Counter((digest,))
                if arrived:
                    self._doomed.discard(digest)
                    self._remember(digest, size_bytes)
        part.unlink()

    def delete(self, digest: str) -> None:
        """Remove a file: at once it is not found any more, and soon it is gone."""
        key = self._key(digest)
        with self._order:
            self._deletions += 1
            self._doomed.add(digest)
            self._sizes.pop(digest, None)
        self._deleter.submit(self._delete, digest, key)

    def sweep_partials(self, older_than_s: float) -> int:
        """Remove what uploads left that nobody has gone on with, here and in the bucket; returns the bytes here."""
        freed = super().sweep_partials(older_than_s)
        try:
            self._sweep_bucket(time.time() - older_than_s)
        except MachineError as error:
            level = logging.WARNING if self._may_list_parts else logging.DEBUG
            self._may_list_parts = False
            _log.log(level, "What broken uploads left in %r stays there: %s", self._bucket, error.detail or error)
        return freed

    def _sweep_bucket(self, limit: float) -> None:
        with self._explained():
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket.name, Prefix=f"{self._prefix}/"):
                for found in page.get("Uploads", ()):
                    if found["Initiated"].timestamp() <= limit:
                        self._abort(found["Key"], found["UploadId"])

    def _send(self, part: Path, key: str, digest: str) -> None:
        size_bytes = part.stat().st_size
        if size_bytes <= PART_BYTES:
            body = part.read_bytes()
            _check(hashlib.sha256(body).hexdigest(), digest)
            self._client.put_object(Bucket=self._bucket.name, Key=key, Body=body, ContentType=_TYPE)
            return
        made = self._client.create_multipart_upload(Bucket=self._bucket.name, Key=key, ContentType=_TYPE)
        upload = {"Bucket": self._bucket.name, "Key": key, "UploadId": made["UploadId"]}
        try:
            found, parts = hashlib.sha256(), []
            for number, body in enumerate(_pieces(part, max(PART_BYTES, -(-size_bytes // _MAX_PARTS))), start=1):
                found.update(body)
                sent = self._client.upload_part(**upload, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            _check(found.hexdigest(), digest)
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self._abort(key, made["UploadId"])
            raise

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket.name, Key=key, UploadId=upload_id)
        except (BotoCoreError, ClientError) as error:
            _log.warning("A broken upload stays in %r for now: %s", self._bucket, error)

    def _delete(self, digest: str, key: str) -> None:
        with self._order:
            if digest not in self._doomed or self._arriving[digest]:
                return
            self._deleting = digest
        gone = False
        try:
            self._client.delete_object(Bucket=self._bucket.name, Key=key)
            gone = True
        except (BotoCoreError, ClientError) as error:
            # It stays doomed, so that nobody is told it is here; the next collection tries again.
            _log.warning("%s could not be deleted from %r: %s", key, self._bucket, error)
        finally:
            with self._order:
                self._deleting = None
                if gone:
                    self._doomed.discard(digest)
                self._order.notify_all()

    def _remember(self, digest: str, size_bytes: int) -> None:
        while len(self._sizes) >= _REMEMBERED:
            self._sizes.pop(next(iter(self._sizes)), None)
        self._sizes[digest] = size_bytes

    def _key(self, digest: str) -> str:
        return f"{self._prefix}/{checked(digest)[:2]}/{digest}"

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, ValueError) as error:
            raise _in_our_words(self._bucket, error) from error


def _in_our_words(bucket: Bucket, error: Exception) -> TunefleetError:
    said = type(error).__name__
    passes = isinstance(error, HTTPClientError | BotoConnectionError)
    if isinstance(error, ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said, passes = error_code(error), status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER
    if passes:
        return UnreachableError(
            f"The artifact store {bucket!r} does not answer as it should: {said}.",
            hint="Check TUNEFLEET_S3_ENDPOINT, or try again later.",
            detail=str(error),
        )
    return MachineError(
        f"The artifact store {bucket!r} cannot be used: {said}.",
        hint="Check the server's TUNEFLEET_ARTIFACTS, its keys and what they may do.",
        detail=str(error),
    )


def _refuse_two_places(root: Path, bucket: Bucket) -> None:
    if (root / BLOBS).exists() and FolderStore(root).kept_before(float("inf")):
        raise MachineError(
            f"The folder {root / BLOBS} holds files, and artifacts are to be kept in {bucket!r}.",
            hint="Copy them (`aws s3 sync`), then give that folder another name.",
        )


def error_code(error: Any) -> str:
    """Return what the service calls an error of its own."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _check(found: str, digest: str) -> None:
    if found != digest:
        raise ArtifactError(f"The file {digest[:12]}… changed on the server's disk.", hint="Upload it again.")


def _pieces(path: Path, size_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(size_bytes):
            yield piece


def _attachment(filename: str) -> str:
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "_" for letter in filename)
    return 'attachment; filename="{}"'.format(plain.replace("\\", "_").replace('"', "_"))
