"""An update with its file in one request: validated before it is stored, recorded in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tunefleet.artifacts import Upload
from tunefleet.db import Connection
from tunefleet.errors import InputError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.orchestrator.federation.updates.intake import Content, ExpectedUpload, in_thread, take, with_scratch
from tunefleet.orchestrator.federation.updates.scratch import Scratch, too_large
from tunefleet.orchestrator.federation.updates.uploads import content_of, expected, metadata_of, refuse_unsent_tokenizer
from tunefleet.orchestrator.storage.artifacts import refuse_upload
from tunefleet.schemas.federated import UpdateCreate


async def expect(
    core: ServerContext, caller: FederationCaller, reference: str, body: UpdateCreate, size_bytes: int
) -> ExpectedUpload | Accepted:
    """Check whether an update can count, before its file is read.

    Raises:
        ForbiddenError: If the caller has no access, or the worker is not a participant.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        TooLargeError: If the file exceeds the limit.
        ArtifactError: If its tokenizer was not uploaded to the federation.
        QuotaError: If the federation's project would exceed its storage quota.
    """

    def operation(connection: Connection) -> ExpectedUpload | Accepted:
        found = expected(connection, caller, reference, body)
        if isinstance(found, Accepted):
            return found
        if size_bytes > found.spec.max_update_bytes:
            raise too_large(found.spec.max_update_bytes)
        row = found.federation
        if row.task_seq is None:
            refuse_upload(connection, core=core, project=row.project, digest=body.sha256, size_bytes=size_bytes)
        refuse_unsent_tokenizer(connection, caller, found.federation, body)
        return found

    return await core.read(operation)


async def accept(
    core: ServerContext,
    ticket: ExpectedUpload,
    body: UpdateCreate,
    arrived: Callable[[], Upload],
    keep: Callable[[Upload], Awaitable[object]],
) -> Accepted:
    """Validate, store and accept an update whose file was received.

    Raises:
        AdapterRefused: If the adapter is not valid for the federation.
        ArtifactError: If the file does not match its digest.
        ConflictError: If another client is sending the same file.
    """
    metadata = metadata_of(body)
    async with with_scratch(core, ticket, metadata) as scratch:
        content, upload = await in_thread(partial(_checked, core, ticket, body, arrived, scratch))
        if upload is None:
            return await take(core, ticket, metadata, content, scratch)
        await keep(upload)
        return await take(core, ticket, metadata, content, scratch, kept={upload.digest: upload.total})


def _checked(
    core: ServerContext, ticket: ExpectedUpload, body: UpdateCreate, arrived: Callable[[], Upload], scratch: Scratch
) -> tuple[Content, Upload | None]:
    """Return the content of an upload, and the upload itself if it is stored unchanged."""
    upload = arrived()
    try:
        scratch.size_bytes = upload.total
        upload.verify()
        content = content_of(core, ticket, body, upload.path, scratch)
    except BaseException as error:
        if isinstance(error, InputError):
            upload.discard()
        upload.close()
        raise
    if content.digest is not None:
        return content, upload
    # An int8 file is not stored: only its dequantized weights are.
    upload.discard()
    upload.close()
    return content, None
