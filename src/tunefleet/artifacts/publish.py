"""Copy a folder into a bucket under its own names, for people and programs that know nothing of Tunefleet.

Imported by who publishes: it needs boto3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tunefleet.artifacts.s3 import PART_BYTES, Bucket, entries, error_code
from tunefleet.errors import ConflictError, ForbiddenError, InputError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.settings import PublishSettings, load

try:
    from boto3.exceptions import S3UploadFailedError
    from boto3.s3.transfer import TransferConfig
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError
except ImportError as missing:  # `artifacts.s3` says it first
    raise RuntimeError("boto3 is incomplete") from missing

_DENIED = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})


class BucketFolder:
    """A place in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        with self._explained():
            self._client: Any = bucket.client(bucket.endpoint)

    def names(self) -> list[str]:
        """Return what is there, as paths below the place.

        Raises:
            ForbiddenError: If the key may not look.
            UnreachableError: If the service does not answer.
        """
        place = self._key("")
        with self._explained():
            found = entries(self._client, self._bucket.name, place)
            return sorted(str(entry["Key"]).removeprefix(place) for entry in found)

    def put(self, files: list[tuple[str, Path]], on_bytes: Callable[[int], None], *, replace: bool) -> None:
        """Write files; what has other names stays.

        Args:
            on_bytes: Called with the number of bytes that were just sent.

        Raises:
            ConflictError: If one is there and may not be.
            ForbiddenError: If the key may not write.
            UnreachableError: If the service does not answer.
        """
        there = set() if replace else set(self.names()) & {name for name, _ in files}
        if there:
            raise ConflictError(
                f"{self._bucket!r} has {sorted(there)[0]} already.",
                hint="Name another prefix, or write over it with --force.",
            )
        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
        for name, path in files:
            with self._explained():
                self._client.upload_file(
                    str(path), self._bucket.name, self._key(name), Callback=on_bytes, Config=config
                )

    def remove(self, names: list[str]) -> None:
        """Remove files, by their paths below the place.

        Raises:
            ForbiddenError: If the key may not remove them.
            UnreachableError: If the service does not answer.
        """
        for name in names:
            with self._explained():
                self._client.delete_object(Bucket=self._bucket.name, Key=self._key(name))

    def _key(self, name: str) -> str:
        prefix = self._bucket.prefix.strip("/")
        return f"{prefix}/{name}" if prefix else name

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise self._refused(error) from error
        except S3UploadFailedError as error:
            cause = error.__context__  # boto3 keeps the answer of an upload there
            if isinstance(cause, ClientError):
                raise self._refused(cause) from error
            raise UnreachableError(f"{self._bucket!r} cannot be written: {error}") from error
        except NoCredentialsError:
            raise ForbiddenError(
                f"There is no key for {self._bucket!r}.",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            ) from None
        except ParamValidationError as error:
            raise InputError(f"{self._bucket!r} cannot be written: {error}", hint="Check the bucket's name.") from error
        except (BotoCoreError, OSError) as error:
            raise UnreachableError(
                f"{self._bucket!r} cannot be reached: {error}", hint="Check TUNEFLEET_S3_ENDPOINT and the network."
            ) from error

    def _refused(self, error: ClientError) -> TunefleetError:
        code = error_code(error)
        if code == "NoSuchBucket":
            return NotFoundError(f"There is no bucket {self._bucket.name}.", hint="Create it, or correct its name.")
        if code in _DENIED:
            return ForbiddenError(
                f"{self._bucket!r} may not be written with this key ({code}).",
                hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            )
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        if 300 <= status < 500 and status not in {408, 429}:  # what a repetition does not change
            return InputError(f"{self._bucket!r} cannot be written: {error}", hint="Check bucket, region and endpoint.")
        return UnreachableError(f"{self._bucket!r} cannot be written: {error}")


def place_at(url: str, access_key: str, secret_key: str) -> BucketFolder:
    """Return a place in a bucket of the service that this process's settings name; the keys are the caller's."""
    settings = load(PublishSettings)
    name, _, prefix = url.removeprefix("s3://").partition("/")
    keys = {"access_key": access_key, "secret_key": secret_key}
    return BucketFolder(
        Bucket(name, prefix.strip("/"), endpoint=settings.s3_endpoint, region=settings.s3_region, **keys)
    )
