"""Open the store of files that the settings name."""

from __future__ import annotations

from pydantic import SecretStr

from tunefleet.artifacts import BlobStore, FolderStore
from tunefleet.settings import ServerSettings


def open_blobs(settings: ServerSettings) -> BlobStore:
    """Return the server's store: a bucket if one is named, else a folder.

    Raises:
        MachineError: If the bucket cannot be used.
        UnreachableError: If its service does not answer.
    """
    folder = settings.data_dir / "artifacts"
    if settings.artifacts is None:
        return FolderStore(folder)
    # boto3 takes 0.3 s to import, and is installed where it is wanted only.
    from tunefleet.artifacts.s3 import Bucket, S3Store  # noqa: PLC0415

    name, _, prefix = settings.artifacts.removeprefix("s3://").partition("/")
    bucket = Bucket(
        name,
        prefix.strip("/"),
        endpoint=settings.s3_endpoint,
        public_endpoint=settings.s3_public_endpoint,
        region=settings.s3_region,
        access_key=_plain(settings.s3_access_key),
        secret_key=_plain(settings.s3_secret_key),
        session_token=_plain(settings.s3_session_token),
    )
    return S3Store(folder, bucket)


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None
