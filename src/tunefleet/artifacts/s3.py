"""Content-addressed files in an S3-compatible bucket: `s3://<bucket>/<prefix>/blobs/ab/<digest>`.

Uploads are collected in the server's folder, where they can be resumed, and sent to the bucket once their digest is
verified: the sent bytes are hashed again, and each request is signed with the digest of its body, which the service
verifies.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tunefleet import errors
from tunefleet.artifacts.direct import Arrivals, PartLink
from tunefleet.artifacts.remote import (
    LINK_S,
    SENDERS,
    TYPE,
    ListedObject,
    RemoteStore,
    attachment,
    check,
    read_pieces,
    store_error,
)
from tunefleet.errors import MachineError, NotFoundError, TunefleetError
from tunefleet.fsutil import CHUNK_BYTES

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as BotoConnectionError

except ImportError as missing:
    raise MachineError(
        "Artifacts in S3 require the package boto3.", hint=f"Install it: {errors.install_command('s3')}"
    ) from missing

_log = logging.getLogger(__name__)

# Larger files are sent in parts of this size, or larger parts if there would be too many.
PART_BYTES: Final = 16 << 20
_MAX_PARTS: Final = 9_000
ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound"})
_GONE: Final = frozenset({"NoSuchUpload", "NoSuchKey", "404", "NotFound"})
_COPY: Final = TransferConfig(multipart_threshold=1 << 30, multipart_chunksize=256 << 20, max_concurrency=4)
"""Copy in parts: one request of this protocol copies at most 5 GB."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bucket of the files.

    Args:
        public_endpoint: URL of the same service for links; `None` for the same URL.
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
        """Return a client of the service, which threads may share."""
        session = boto3.session.Session(
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            aws_session_token=self.session_token,
            region_name=self.region,
        )
        config = Config(
            signature_version="s3v4",
            # Bucket names in host names work only at Amazon; elsewhere they would need DNS entries.
            s3={"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": True},
            # Other services reject Amazon's own checksums; the signed digest of each body protects it as well.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "max_attempts": 4},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=2 * SENDERS,
        )
        return session.client("s3", endpoint_url=endpoint, config=config)


def entries(client: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the listing entries of files with a prefix."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from page.get("Contents", ())


class S3Store(RemoteStore):
    """Content-addressed files in a bucket; one process at a time may delete from a prefix.

    Raises:
        MachineError: If the bucket is unusable, or the local folder still contains files.
        UnreachableError: If the service does not respond.
    """

    def __init__(self, root: Path, bucket: Bucket, *, link_s: int = LINK_S) -> None:
        super().__init__(root, repr(bucket), bucket.prefix, link_s=link_s)
        self._bucket = bucket
        with self._explained():
            self._client = bucket.client(bucket.endpoint)
            self._signer = bucket.client(bucket.public_endpoint) if bucket.public_endpoint else self._client
            self._client.list_objects_v2(Bucket=bucket.name, Prefix=f"{self._prefix}/", MaxKeys=1)
        self._take_direct(S3Arrivals(self._client, self._signer, bucket.name, self._arriving_place))

    def close(self) -> None:
        """Finish running uploads; pending deletions are repeated by the next collection."""
        super().close()
        self._client.close()

    def _head(self, key: str) -> int | None:
        try:
            return int(self._client.head_object(Bucket=self._bucket.name, Key=key)["ContentLength"])
        except ClientError as error:
            if error_code(error) in ABSENT:
                return None
            raise

    def _url(self, key: str, filename: str) -> str:
        return str(
            self._signer.generate_presigned_url(
                "get_object",
                Params={
                    "Bucket": self._bucket.name,
                    "Key": key,
                    # A browser must never run what a user stored.
                    "ResponseContentType": TYPE,
                    "ResponseContentDisposition": attachment(filename),
                },
                ExpiresIn=self._link_s,
            )
        )

    def _read(self, key: str) -> Iterator[bytes]:
        body = self._client.get_object(Bucket=self._bucket.name, Key=key)["Body"]
        with contextlib.closing(body):
            yield from body.iter_chunks(CHUNK_BYTES)

    def _listed(self) -> Iterator[ListedObject]:
        for entry in entries(self._client, self._bucket.name, f"{self._prefix}/"):
            yield ListedObject(entry["Key"], int(entry["Size"]), entry["LastModified"].timestamp())

    def _remove(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket.name, Key=key)

    def _sweep_there(self, limit: float) -> None:
        pages = self._client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self._bucket.name, Prefix=f"{self._prefix}/"):
            for found in page.get("Uploads", ()):
                if found["Initiated"].timestamp() <= limit:
                    self._abort(found["Key"], found["UploadId"])

    def _send(self, part: Path, key: str, digest: str) -> None:
        size_bytes = part.stat().st_size
        if size_bytes <= PART_BYTES:
            body = part.read_bytes()
            check(hashlib.sha256(body).hexdigest(), digest)
            self._client.put_object(Bucket=self._bucket.name, Key=key, Body=body, ContentType=TYPE)
            return
        made = self._client.create_multipart_upload(Bucket=self._bucket.name, Key=key, ContentType=TYPE)
        upload = {"Bucket": self._bucket.name, "Key": key, "UploadId": made["UploadId"]}
        try:
            found, parts = hashlib.sha256(), []
            for number, body in enumerate(read_pieces(part, max(PART_BYTES, -(-size_bytes // _MAX_PARTS))), start=1):
                found.update(body)
                sent = self._client.upload_part(**upload, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            check(found.hexdigest(), digest)
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self._abort(key, made["UploadId"])
            raise

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket.name, Key=key, UploadId=upload_id)
        except (BotoCoreError, ClientError) as error:
            _log.warning("Cannot abort an interrupted upload in %r: %s", self._bucket, error)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, ValueError) as error:
            raise _store_error(self._bucket, error) from error


def _store_error(bucket: Bucket, error: Exception) -> TunefleetError:
    code, status = type(error).__name__, 0
    passes = isinstance(error, HTTPClientError | BotoConnectionError)
    if isinstance(error, ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = error_code(error)
    return store_error(
        repr(bucket), code, status, str(error), passes=passes, check="TUNEFLEET_S3_ENDPOINT", variables="its keys"
    )


def error_code(error: Any) -> str:
    """Return the service's error code."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


class S3Arrivals(Arrivals):
    """Direct uploads to a bucket."""

    def __init__(self, client: Any, signer: Any, bucket: str, place: str) -> None:
        self._client, self._signer = client, signer
        self._bucket, self._place = bucket, place

    def begin(self, name: str) -> str:
        """Start a multipart upload."""
        return str(self._client.create_multipart_upload(**self._at(name), ContentType=TYPE)["UploadId"])

    def parts(self, name: str, ref: str) -> dict[int, int] | None:
        """Return the stored parts; `None` if they are assembled already."""
        try:
            return {number: size for number, size, _ in self._listed(name, ref)}
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
        try:
            self.version(name)
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
            raise NotFoundError(f"Upload {name} no longer exists.", hint="Start it again.") from error
        return None

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:
        """Return a link that accepts one part of exactly this size."""
        wanted = {**self._at(name), "UploadId": ref, "PartNumber": number, "ContentLength": size_bytes}
        return PartLink(str(self._signer.generate_presigned_url("upload_part", Params=wanted, ExpiresIn=good_s)))

    def assemble(self, name: str, ref: str, count: int) -> None:
        """Complete the multipart upload."""
        parts = [{"PartNumber": number, "ETag": tag} for number, _, tag in self._listed(name, ref) if number <= count]
        self._client.complete_multipart_upload(**self._at(name), UploadId=ref, MultipartUpload={"Parts": parts})

    def version(self, name: str) -> tuple[str, int]:
        """Return ETag and size of the object."""
        found = self._client.head_object(**self._at(name))
        return str(found["ETag"]), int(found["ContentLength"])

    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the object's content."""
        body = self._client.get_object(**self._at(name), IfMatch=version)["Body"]
        with contextlib.closing(body):
            yield from body.iter_chunks(CHUNK_BYTES)

    def copy(self, name: str, version: str, key: str) -> None:
        """Copy the object within the service."""
        only = {"CopySourceIfMatch": version}
        self._client.copy(self._at(name), self._bucket, key, ExtraArgs=only, Config=_COPY)

    def discard(self, name: str, ref: str) -> None:
        """Abort the multipart upload, and delete the object if it was assembled."""
        try:
            if ref:
                self._client.abort_multipart_upload(**self._at(name), UploadId=ref)
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
        self._client.delete_object(**self._at(name))

    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield old multipart uploads and abandoned objects."""
        place = f"{self._place}/"
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=place):
            for found in page.get("Contents", ()):
                if found["LastModified"].timestamp() <= limit:
                    yield found["Key"].removeprefix(place), ""
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=place):
            for found in page.get("Uploads", ()):
                if found["Initiated"].timestamp() <= limit:
                    yield found["Key"].removeprefix(place), found["UploadId"]

    def _listed(self, name: str, ref: str) -> Iterator[tuple[int, int, str]]:
        for page in self._client.get_paginator("list_parts").paginate(**self._at(name), UploadId=ref):
            for part in page.get("Parts", ()):
                yield int(part["PartNumber"]), int(part["Size"]), part["ETag"]

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._place}/{name}"}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))
