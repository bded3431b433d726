"""Downloads of a federation's versions, by key or by signed link."""

from __future__ import annotations

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import data_chunks, signed_links
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.status import find
from tunefleet.orchestrator.federation.version_archives import with_archive
from tunefleet.orchestrator.federation.versions import version_of
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.schemas.api import FileEntry


async def archive(
    core: ServerContext,
    caller: FederationCaller | None,
    reference: str,
    version: int | None,
    signature: Signature | None,
) -> tuple[VersionRow, FileEntry]:
    """Find a version and its archive, for a caller with read access or a valid link.

    Raises:
        ForbiddenError: If the link is not valid, or the caller has no access.
    """

    def operation(connection: Connection) -> VersionRow:
        row = data_chunks.linked(connection, reference) if caller is None else find(connection, caller, reference)
        found = version_of(connection, row, version)
        if caller is None:
            assert signature is not None, "requests with neither key nor link are refused before"
            # Links are signed over the archive's digest, so that none is valid for an archive that was never made.
            signed_links.verify_version(core, row.id, found.version, found.archive_digest or "", signature)
        return found

    return await with_archive(core, await core.read(operation))


async def file(
    core: ServerContext, caller: FederationCaller, reference: str, version: int | None, path: str
) -> FileEntry:
    """Find a file of a version."""
    found = await core.read(lambda connection: version_of(connection, find(connection, caller, reference), version))
    return file_of(found, path)


def file_of(version: VersionRow, path: str) -> FileEntry:
    """Return a file of a version.

    Raises:
        NotFoundError: If the version has no such file.
    """
    for name, digest, size_bytes in orjson.loads(version.files):
        if name == path:
            return FileEntry(path=name, digest=digest, size_bytes=size_bytes)
    raise NotFoundError(f"Version {version.version} has no file {path}.")
