"""Files under names in a bucket of S3, or of anything that speaks its protocol, for who fetches them by a link."""

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
        "An object store needs the package boto3.", hint=f"Install it: {errors.install('s3')}"
    ) from missing

__all__ = ["LONGEST_LINK_S", "Bucket", "ObjectStore"]

# No signature of this protocol is good for longer.
LONGEST_LINK_S: Final = 7 * 86_400
_REFUSED: Final = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden"})
_HINT: Final = "Check S3_COMPATIBLE_ENDPOINT, S3_COMPATIBLE_ACCESS_KEY, S3_COMPATIBLE_SECRET_KEY and S3_BUCKET_NAME."


# Called with a number of bytes.
Bytes = Callable[[int], None]


class ObjectStore:
    """A bucket. It blocks: call it in threads, of which several may share it.

    Raises:
        MachineError: If its address is none.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        with self._explained():
            self._client: Any = bucket.client(bucket.endpoint)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def put(self, path: Path, key: str, content_type: str, on_bytes: Bytes | None = None) -> None:
        """Store a file under a name; what was there is replaced, and nobody ever sees a part of it.

        Args:
            on_bytes: Called from several threads with how many bytes were just sent.

        Raises:
            MachineError: If the store refuses it.
            UnreachableError: If the store does not answer.
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
        """Return the length of a file in bytes; null if there is none of that name. Raises as `put`."""
        with self._explained():
            try:
                return int(self._client.head_object(Bucket=self._bucket.name, Key=key)["ContentLength"])
            except ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise

    def version(self, key: str) -> str:
        """Return what changes when a file does.

        Raises:
            NotFoundError: If there is no file of that name.
            MachineError: If the store refuses to say.
            UnreachableError: If it does not answer.
        """
        with self._explained():
            try:
                found = self._client.head_object(Bucket=self._bucket.name, Key=key)
            except ClientError as error:
                if error_code(error) in ABSENT:
                    raise NotFoundError(f"There is no s3://{self._bucket.name}/{key}.") from error
                raise
        return f"{found['ETag']} {found['ContentLength']} {found['LastModified'].timestamp()}"

    def get(self, key: str, path: Path, on_size: Bytes | None = None, on_bytes: Bytes | None = None) -> None:
        """Fetch a file.

        Args:
            on_size: Called with how many bytes it has, before they come.
            on_bytes: Called from several threads with how many bytes have just come.

        Raises:
            NotFoundError: If there is no file of that name.
            MachineError: If the store refuses it.
            UnreachableError: If the store does not answer.
        """
        if on_size is not None:
            on_size(self.size(key) or 0)
        with self._explained():
            self._client.download_file(self._bucket.name, key, str(path), Callback=on_bytes)

    def link(self, key: str, seconds: int = LONGEST_LINK_S) -> str:
        """Return a link under which anybody may fetch a file for a while; nothing is asked of the store."""
        with self._explained():
            return str(
                self._client.generate_presigned_url(
                    "get_object", Params={"Bucket": self._bucket.name, "Key": key}, ExpiresIn=seconds
                )
            )

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all files that begin with a prefix. Raises as `put`."""
        with self._explained():
            for entry in entries(self._client, self._bucket.name, prefix):
                yield str(entry["Key"])

    def remove(self, keys: Iterable[str]) -> int:
        """Remove files; one that is not there counts as removed. Raises as `put`."""
        names = list(keys)
        with self._explained():
            # One by one: some services do not take requests that remove several.
            for name in names:
                self._client.delete_object(Bucket=self._bucket.name, Key=name)
        return len(names)

    def abort(self, prefix: str) -> int:
        """Drop uploads that were begun and never ended, which no listing shows and which are paid for all the same."""
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
            raise _in_our_words(self._bucket, error) from error


def _in_our_words(bucket: Bucket, error: Exception) -> MachineError | UnreachableError:
    cause = error.__context__ if isinstance(error, Boto3Error) and error.__context__ is not None else error
    if not isinstance(cause, ClientError):
        if isinstance(cause, ValueError):
            return MachineError(f"The store of {bucket!r} has an address that is none.", hint=_HINT, detail=str(error))
        return UnreachableError(
            f"The store of {bucket!r} does not answer: {type(cause).__name__}.", hint=_HINT, detail=str(error)
        )
    code = error_code(cause)
    status = int(cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return MachineError(f"There is no bucket {bucket.name}.", hint="Make it, or correct S3_BUCKET_NAME.")
    if code in _REFUSED:
        return MachineError(f"The store of {bucket!r} refuses the key: {code}.", hint=_HINT, detail=str(error))
    if status >= 500 or status == 429:
        return UnreachableError(f"The store of {bucket!r} cannot answer now: {code}.", detail=str(error))
    return MachineError(f"The store of {bucket!r} refuses: {code}.", hint=_HINT, detail=str(error))
