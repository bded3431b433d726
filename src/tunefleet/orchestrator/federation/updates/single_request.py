"""An update and its file in one request: the file is checked before it is kept, and both count in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tunefleet.artifacts import Upload
from tunefleet.db import Connection
from tunefleet.errors import InputError
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation.participants import Who
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.orchestrator.federation.updates.intake import Content, Ticket, in_thread, take, with_scratch
from tunefleet.orchestrator.federation.updates.scratch import Scratch, too_large
from tunefleet.orchestrator.federation.updates.uploads import content_of, expected, refuse_unsent_tokenizer, said_in
from tunefleet.orchestrator.storage.artifacts import refuse_upload
from tunefleet.schemas.federated import UpdateCreate


async def expect(core: Core, who: Who, reference: str, body: UpdateCreate, size_bytes: int) -> Ticket | Accepted:
    """Look, before a file is read, whether its update can count.

    Raises:
        ForbiddenError: If it is none of the asker's business, or the worker does not take part.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        TooLargeError: If the file is longer than an update may be.
        ArtifactError: If its tokenizer was not sent to the federation.
        QuotaError: If the federation's project would keep more than it may.
    """

    def operation(connection: Connection) -> Ticket | Accepted:
        found = expected(connection, who, reference, body)
        if isinstance(found, Accepted):
            return found
        if size_bytes > found.spec.max_update_bytes:
            raise too_large(found.spec.max_update_bytes)
        row = found.federation
        if row.task_seq is None:
            refuse_upload(connection, core=core, project=row.project, digest=body.sha256, size_bytes=size_bytes)
        refuse_unsent_tokenizer(connection, who, found.federation, body)
        return found

    return await core.read(operation)


async def take_whole(
    core: Core,
    ticket: Ticket,
    body: UpdateCreate,
    arrived: Callable[[], Upload],
    keep: Callable[[Upload], Awaitable[object]],
) -> Accepted:
    """Check, keep and count an update whose file has arrived.

    Raises:
        AdapterRefused: If the adapter may not take part.
        ArtifactError: If the file does not have its digest.
        ConflictError: If somebody else is sending the same file.
    """
    said = said_in(body)
    async with with_scratch(core, ticket, said) as scratch:
        content, upload = await in_thread(partial(_checked, core, ticket, body, arrived, scratch))
        if upload is None:
            return await take(core, ticket, said, content, scratch)
        await keep(upload)
        return await take(core, ticket, said, content, scratch, kept={upload.digest: upload.total})


def _checked(
    core: Core, ticket: Ticket, body: UpdateCreate, arrived: Callable[[], Upload], scratch: Scratch
) -> tuple[Content, Upload | None]:
    """Return what an upload is, and the upload if it is to be kept as it came."""
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
    # Of 8 bits only the floats are kept.
    upload.discard()
    upload.close()
    return content, None
