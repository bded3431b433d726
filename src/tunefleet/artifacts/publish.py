"""Copies a folder into a bucket under its own file names, for users and programs outside Tunefleet.

Imported on demand: requires boto3.
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
    """A folder in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        with self._explained():
            self._client: Any = bucket.client(bucket.endpoint)

    def names(self) -> list[str]:
        """Return the existing files, as paths below the folder.

        Raises:
            ForbiddenError: If the key may not list.
            UnreachableError: If the service does not respond.
        """
        place = self._key("")
        with self._explained():
            found = entries(self._client, self._bucket.name, place)
            return sorted(str(entry["Key"]).removeprefix(place) for entry in found)

    def put(self, files: list[tuple[str, Path]], on_bytes: Callable[[int], None], *, replace: bool) -> None:
        """Upload files; other files stay.

        Args:
            on_bytes: Called with the number of bytes just sent.

        Raises:
            ConflictError: If one exists and `replace` is false.
            ForbiddenError: If the key may not write.
            UnreachableError: If the service does not respond.
        """
        existing = set() if replace else set(self.names()) & {name for name, _ in files}
        if existing:
            raise ConflictError(
                f"{self._bucket!r} already contains {sorted(existing)[0]}.",
                hint="Use another prefix, or overwrite it with --force.",
            )
        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
        for name, path in files:
            with self._explained():
                self._client.upload_file(
                    str(path), self._bucket.name, self._key(name), Callback=on_bytes, Config=config
                )

    def remove(self, names: list[str]) -> None:
        """Delete files, by their paths below the folder.

        Raises:
            ForbiddenError: If the key may not delete them.
            UnreachableError: If the service does not respond.
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
            cause = error.__context__  # boto3 keeps the service's response there
            if isinstance(cause, ClientError):
                raise self._refused(cause) from error
            raise UnreachableError(f"Cannot write to {self._bucket!r}: {error}") from error
        except NoCredentialsError:
            raise ForbiddenError(
                f"No credentials for {self._bucket!r}.",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            ) from None
        except ParamValidationError as error:
            raise InputError(f"Cannot write to {self._bucket!r}: {error}", hint="Check the bucket's name.") from error
        except (BotoCoreError, OSError) as error:
            raise UnreachableError(
                f"Cannot reach {self._bucket!r}: {error}", hint="Check TUNEFLEET_S3_ENDPOINT and the network."
            ) from error

    def _refused(self, error: ClientError) -> TunefleetError:
        code = error_code(error)
        if code == "NoSuchBucket":
            return NotFoundError(
                f"The bucket {self._bucket.name} does not exist.", hint="Create it, or correct its name."
            )
        if code in _DENIED:
            return ForbiddenError(
                f"This key has no write access to {self._bucket!r} ({code}).",
                hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            )
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        if 300 <= status < 500 and status not in {408, 429}:  # a retry does not change these
            return InputError(f"Cannot write to {self._bucket!r}: {error}", hint="Check bucket, region and endpoint.")
        return UnreachableError(f"Cannot write to {self._bucket!r}: {error}")


def place_at(url: str, access_key: str, secret_key: str) -> BucketFolder:
    """Return a folder in a bucket, with the endpoint of this process's settings and the caller's keys."""
    settings = load(PublishSettings)
    name, _, prefix = url.removeprefix("s3://").partition("/")
    keys = {"access_key": access_key, "secret_key": secret_key}
    return BucketFolder(
        Bucket(name, prefix.strip("/"), endpoint=settings.s3_endpoint, region=settings.s3_region, **keys)
    )
