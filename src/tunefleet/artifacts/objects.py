"""Named files in an S3-compatible bucket, for consumers that download them with a link."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tunefleet import errors
from tunefleet.artifacts.s3 import ABSENT, PART_BYTES, Bucket, entries, error_code
from tunefleet.errors import MachineError, NotFoundError, UnreachableError

try:
    from boto3.exceptions import Boto3Error
    from boto3.s3.transfer import TransferConfig
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as missing:  # `artifacts.s3` says it first
    raise MachineError(
        "An object store requires the package boto3.", hint=f"Install it: {errors.install_command('s3')}"
    ) from missing

__all__ = ["LONGEST_LINK_S", "Bucket", "ObjectStore"]

# The protocol allows no longer lifetime of a signature.
LONGEST_LINK_S: Final = 7 * 86_400
_REFUSED: Final = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden"})
_HINT: Final = (
    "Check TUNEFLEET_CAMPAIGN_S3_ENDPOINT, TUNEFLEET_CAMPAIGN_S3_ACCESS_KEY, TUNEFLEET_CAMPAIGN_S3_SECRET_KEY and "
    "TUNEFLEET_CAMPAIGN_S3_BUCKET."
)


# Called with a number of bytes.
Bytes = Callable[[int], None]


class ObjectStore:
    """A bucket. Blocking: call it in threads, which may share it.

    Raises:
        MachineError: If its address is invalid.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        with self._explained():
            self._client: Any = bucket.client(bucket.endpoint)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def put(self, path: Path, key: str, content_type: str, on_bytes: Bytes | None = None) -> None:
        """Store a file under a name; atomically replaces an existing one.

        Args:
            on_bytes: Called from several threads with the number of bytes just sent.

        Raises:
            MachineError: If the store refuses it.
            UnreachableError: If the store does not respond.
        """
        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
        with self._explained():
            self._client.upload_file(
                str(path),
                self._bucket.name,
                key,
                ExtraArgs={"ContentType": content_type},
                Config=config,
                Callback=on_bytes,
            )

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes; `None` if it does not exist. Raises as `put`."""
        with self._explained():
            try:
                return int(self._client.head_object(Bucket=self._bucket.name, Key=key)["ContentLength"])
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise

    def version(self, key: str) -> str:
        """Return a string that changes when the file changes.

        Raises:
            NotFoundError: If the file does not exist.
            MachineError: If the store refuses it.
            UnreachableError: If the store does not respond.
        """
        with self._explained():
            try:
                found = self._client.head_object(Bucket=self._bucket.name, Key=key)
            except ClientError as error:
                if error_code(error) in ABSENT:
                    raise NotFoundError(f"s3://{self._bucket.name}/{key} does not exist.") from error
                raise
        return f"{found['ETag']} {found['ContentLength']} {found['LastModified'].timestamp()}"

    def get(self, key: str, path: Path, on_size: Bytes | None = None, on_bytes: Bytes | None = None) -> None:
        """Download a file.

        Args:
            on_size: Called with the file's size, before its bytes.
            on_bytes: Called from several threads with the number of bytes just received.

        Raises:
            NotFoundError: If the file does not exist.
            MachineError: If the store refuses it.
            UnreachableError: If the store does not respond.
        """
        if on_size is not None:
            on_size(self.size(key) or 0)
        with self._explained():
            self._client.download_file(self._bucket.name, key, str(path), Callback=on_bytes)

    def link(self, key: str, seconds: int = LONGEST_LINK_S) -> str:
        """Return a link that downloads a file without a key for a while; makes no request to the store."""
        with self._explained():
            return str(
                self._client.generate_presigned_url(
                    "get_object", Params={"Bucket": self._bucket.name, "Key": key}, ExpiresIn=seconds
                )
            )

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all files with a prefix. Raises as `put`."""
        with self._explained():
            for entry in entries(self._client, self._bucket.name, prefix):
                yield str(entry["Key"])

    def remove(self, keys: Iterable[str]) -> int:
        """Delete files; a missing one counts as deleted. Raises as `put`."""
        names = list(keys)
        with self._explained():
            # One by one: some services do not support multi-object deletes.
            for name in names:
                self._client.delete_object(Bucket=self._bucket.name, Key=name)
        return len(names)

    def abort(self, prefix: str) -> int:
        """Abort unfinished multipart uploads, which no listing shows but which are billed."""
        count, bucket = 0, self._bucket.name
        with self._explained():
            for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
                for each in page.get("Uploads", ()):
                    self._client.abort_multipart_upload(Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"])
                    count += 1
        return count

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError, ValueError) as error:
            raise _store_error(self._bucket, error) from error


def _store_error(bucket: Bucket, error: Exception) -> MachineError | UnreachableError:
    # boto3 wraps errors of transfers and keeps the service's response only as the context.
    cause = error.__context__ if isinstance(error, Boto3Error) and error.__context__ is not None else error
    if not isinstance(cause, ClientError):
        if isinstance(cause, ValueError):
            return MachineError(f"The address of the store of {bucket!r} is invalid.", hint=_HINT, detail=str(error))
        return UnreachableError(
            f"The store of {bucket!r} does not respond: {type(cause).__name__}.", hint=_HINT, detail=str(error)
        )
    code = error_code(cause)
    status = int(cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return MachineError(
            f"The bucket {bucket.name} does not exist.", hint="Create it, or correct TUNEFLEET_CAMPAIGN_S3_BUCKET."
        )
    if code in _REFUSED:
        return MachineError(f"The store of {bucket!r} rejects the key: {code}.", hint=_HINT, detail=str(error))
    if status >= 500 or status == 429:
        return UnreachableError(f"The store of {bucket!r} is temporarily unavailable: {code}.", detail=str(error))
    return MachineError(f"The store of {bucket!r} rejects the request: {code}.", hint=_HINT, detail=str(error))
