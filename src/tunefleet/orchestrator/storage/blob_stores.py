"""Open the configured blob store."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import SecretStr

from tunefleet.artifacts import BlobStore, FolderStore, SharedFolderStore
from tunefleet.errors import MachineError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.settings import ServerSettings

Kind = Literal["folder", "shared folder", "s3", "gcs", "azure"]
_FOLDER: Final = "federation"


def open_blobs(settings: ServerSettings) -> BlobStore:
    """Return the configured blob store; default: a folder in the data folder.

    Raises:
        MachineError: If the store cannot be used.
        UnreachableError: If its service cannot be reached.
    """
    folder = settings.data_dir / "artifacts"
    if settings.artifacts is None:
        return FolderStore(folder)
    scheme, _, rest = settings.artifacts.partition("://")
    if scheme == "file":
        return SharedFolderStore(folder, Path(rest))
    name, _, prefix = rest.partition("/")
    return _REMOTE[scheme](folder, settings, name, prefix.strip("/"))


def kind(settings: ServerSettings) -> Kind:
    """Return the kind of the store."""
    return "folder" if settings.artifacts is None else _KINDS[settings.artifacts.partition("://")[0]]


# Imported on use: the client libraries are optional and take up to a second to import.


def _s3(folder: Path, settings: ServerSettings, name: str, prefix: str) -> BlobStore:
    from tunefleet.artifacts.s3 import Bucket, S3Store  # noqa: PLC0415

    bucket = Bucket(
        name,
        prefix,
        endpoint=settings.s3_endpoint,
        public_endpoint=settings.s3_public_endpoint,
        region=settings.s3_region,
        access_key=_plain(settings.s3_access_key),
        secret_key=_plain(settings.s3_secret_key),
        session_token=_plain(settings.s3_session_token),
    )
    return S3Store(folder, bucket)


def _gcs(folder: Path, settings: ServerSettings, name: str, prefix: str) -> BlobStore:
    from tunefleet.artifacts.gcs import GcsBucket, GcsStore  # noqa: PLC0415

    if settings.gcs_key_file is None:
        raise MachineError(
            f"{settings.artifacts} needs GOOGLE_APPLICATION_CREDENTIALS.",
            hint="Set it to the JSON key file of a service account, which signs the URLs.",
        )
    return GcsStore(folder, GcsBucket(name, settings.gcs_key_file, prefix, endpoint=settings.gcs_endpoint))


def _azure(folder: Path, settings: ServerSettings, name: str, prefix: str) -> BlobStore:
    from tunefleet.artifacts.azure import AzureStore, Container  # noqa: PLC0415

    connection = _plain(settings.azure_connection)
    if connection is None:
        raise MachineError(
            f"{settings.artifacts} needs AZURE_STORAGE_CONNECTION_STRING.",
            hint="Copy it from the access keys of the storage account.",
        )
    return AzureStore(folder, Container(name, connection, prefix))


_KINDS: Final[dict[str, Kind]] = {"file": "shared folder", "s3": "s3", "gs": "gcs", "az": "azure"}
_REMOTE: Final = {"s3": _s3, "gs": _gcs, "az": _azure}


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


def federation_folder(core: ServerContext) -> Path:
    """Return the parent of all work folders."""
    return core.settings.data_dir / _FOLDER
