"""What is fetched of a federation: files of its versions, by key or by link."""

from __future__ import annotations

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation.guide import data_chunks, signed_links
from tunefleet.orchestrator.federation.participants import Who
from tunefleet.orchestrator.federation.status import find
from tunefleet.orchestrator.federation.version_archives import with_archive
from tunefleet.orchestrator.federation.versions import version_of
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.schemas.api import FileEntry


async def archive(
    core: Core, who: Who | None, reference: str, version: int | None, signature: Signature | None
) -> tuple[VersionRow, FileEntry]:
    """Find a version to download and its archive, for who may see it or has a good link.

    Raises:
        ForbiddenError: If the link is not good, or it is none of the asker's business.
    """

    def operation(connection: Connection) -> VersionRow:
        row = data_chunks.linked(connection, reference) if who is None else find(connection, who, reference)
        found = version_of(connection, row, version)
        if who is None:
            assert signature is not None, "who has neither key nor link is refused before"
            # There is no good link to an archive that was never made: a link is signed over its digest.
            signed_links.verify_version(core, row.id, found.version, found.archive_digest or "", signature)
        return found

    return await with_archive(core, await core.read(operation))


async def file(core: Core, who: Who, reference: str, version: int | None, path: str) -> FileEntry:
    """Find one file of a version."""
    found = await core.read(lambda connection: version_of(connection, find(connection, who, reference), version))
    return file_of(found, path)


def file_of(version: VersionRow, path: str) -> FileEntry:
    """Return one file of a version.

    Raises:
        NotFoundError: If it has no such file.
    """
    for name, digest, size_bytes in orjson.loads(version.files):
        if name == path:
            return FileEntry(path=name, digest=digest, size_bytes=size_bytes)
    raise NotFoundError(f"Version {version.version} has no file {path}.")
