"""Direct uploads from workers to the object store, in parts, with presigned URLs.

    plan ─▶ links ─▶ parts, directly to the store ─▶ complete: read back, copied to its digest, recorded

A plan belongs to one open attempt and has the digest and the size of a file. Incomplete uploads are garbage-collected
after a grace period without progress.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import Final

from tunefleet.artifacts.blobs import NoRoomError
from tunefleet.artifacts.direct import DirectUploads, part_bytes_of, sizes_of
from tunefleet.db import Connection
from tunefleet.db.repositories import events, tasks
from tunefleet.db.repositories.artifacts import (
    ArrivingRow,
    arriving_of_attempt,
    arriving_taken,
    delete_arriving,
    insert_arriving,
    touch_arriving,
)
from tunefleet.errors import (
    ArtifactError,
    ConflictError,
    ForbiddenError,
    MachineError,
    NotFoundError,
    TooLargeError,
    TunefleetError,
)
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import AttemptActor, Caller
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import artifacts, garbage_collection
from tunefleet.orchestrator.storage.garbage_collection import DirectUploadState
from tunefleet.schemas.direct import DirectLink, DirectLinks, DirectOffer, DirectPlan

log = logging.getLogger(__name__)
# Validity of a presigned URL.
LINK_S: Final = 900
# After a refusal of the object store, files pass through the server for this time.
_RETRY_DIRECT_S: Final = 600.0
# Assumed minimum speed of reading a file back and copying it in the store.
_READ_BYTES_PER_S: Final = 4 << 20


def offer(core: ServerContext, caller: Caller) -> DirectOffer | None:
    """Return what this caller may upload directly; None if everything passes through the server."""
    settings = core.settings
    if not isinstance(caller, AttemptActor) or core.blobs.direct is None or settings.direct_uploads == "off":
        return None
    if core.clock.monotonic() < core.state(DirectUploadState).again_at:
        return None
    return DirectOffer(least_bytes=settings.direct_upload_bytes, required=settings.direct_uploads == "on")


async def plan(core: ServerContext, caller: AttemptActor, digest: str, size_bytes: int) -> DirectPlan:
    """Start a direct upload, or resume one of this attempt.

    Raises:
        ForbiddenError: If files pass through the server, by configuration or, for a while, because the object store
            has refused a request; see the log.
        MachineError: If the object store has refused a request and files must not pass through the server.
        TooLargeError: If it exceeds the maximum upload size.
        NoRoomError: If it exceeds the server's storage limit; nothing must be sent.
        ConflictError: If the attempt has ended, or the file is being read back.
        UnreachableError: If the store cannot be reached.
    """
    direct = _direct(core)
    if offer(core, caller) is None:
        raise ForbiddenError("Files pass through this server for now.", hint="See its log for the reason.")
    try:
        return await _planned(core, direct, caller, digest, size_bytes)
    except NoRoomError:
        raise
    except MachineError as error:
        if core.settings.direct_uploads == "on":
            raise
        core.state(DirectUploadState).again_at = core.clock.monotonic() + _RETRY_DIRECT_S
        log.warning("Files pass through the server for %.0f minutes: %s", _RETRY_DIRECT_S / 60, error.detail or error)
        raise ForbiddenError(f"Files pass through this server: {error.message}", hint=error.hint) from error


async def _planned(
    core: ServerContext, direct: DirectUploads, caller: AttemptActor, digest: str, size_bytes: int
) -> DirectPlan:
    if size_bytes > core.settings.max_upload_bytes:
        raise TooLargeError(f"The file has {size_bytes:,} bytes; the limit is {core.settings.max_upload_bytes:,}.")
    row = await core.write(partial(_find_resumable, core=core, caller=caller, digest=digest))
    if row is not None and row.size_bytes == size_bytes:
        _refuse_reading(core, row)
        try:
            return _plan_of(row, await asyncio.to_thread(direct.parts, row.name, row.ref, _sizes(row)))
        except NotFoundError:
            log.info("The store has lost upload %s; restarting it.", row.name)
    if row is not None:
        await garbage_collection.abort_upload(core, row)
    return _plan_of(await _begin(core, direct, caller, digest, size_bytes), set())


async def links(
    core: ServerContext, caller: AttemptActor, digest: str, name: str, numbers: tuple[int, ...]
) -> DirectLinks:
    """Return presigned URLs for parts of a file, each for its exact length.

    Raises:
        NotFoundError: If the attempt has no such plan, or the file has no such part.
    """
    direct = _direct(core)
    row = await core.write(partial(_find_upload, core=core, caller=caller, digest=digest, name=name))
    sizes = _sizes(row)
    for number in numbers:
        if not 1 <= number <= len(sizes):
            raise NotFoundError(f"Upload {name} has {len(sizes)} parts, but no part {number}.")

    def sign() -> tuple[DirectLink, ...]:
        made = ((number, direct.link(row.name, row.ref, number, sizes[number - 1], LINK_S)) for number in numbers)
        return tuple(DirectLink(part=number, url=link.url, headers=dict(link.headers)) for number, link in made)

    return DirectLinks(links=await asyncio.to_thread(sign), good_s=LINK_S)


async def complete(core: ServerContext, caller: AttemptActor, digest: str, name: str) -> int:
    """Verify an uploaded file and record it; return its size in bytes. Idempotent.

    Raises:
        NotFoundError: If the attempt has no such plan.
        ConflictError: If parts are missing, or the file is being read back.
        ArtifactError: If its digest is wrong; the upload is discarded.
        NoRoomError: If it exceeds the server's storage limit.
    """
    direct = _direct(core)
    row = await core.write(partial(_find_upload, core=core, caller=caller, digest=digest, name=name, reads=True))
    _refuse_reading(core, row)
    core.state(DirectUploadState).verifying.add(name)
    try:
        # Other uploads may have reached the limit meanwhile.
        core.blobs.within_limit(row.size_bytes)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(core.blobs.executor, direct.finish, row.name, row.ref, _sizes(row), row.digest)
        await artifacts.stored(core, caller, digest, row.size_bytes)
        await core.write(lambda connection: delete_arriving(connection, name))
    except ArtifactError:
        await core.write(lambda connection: delete_arriving(connection, name))
        raise
    finally:
        core.state(DirectUploadState).verifying.discard(name)
    return row.size_bytes


async def abort(core: ServerContext, caller: AttemptActor, digest: str, name: str, why: str) -> None:
    """Abort an upload that its worker sends through the server instead, and record it as an event of the task.

    Raises:
        NotFoundError: If the attempt has no such plan.
    """
    _direct(core)
    row = await core.write(partial(_find_upload, core=core, caller=caller, digest=digest, name=name))
    await garbage_collection.abort_upload(core, row)
    log.warning("Worker %s cannot upload to the object store: %s", caller.worker_id, why)

    def record_event(connection: Connection) -> None:
        task = tasks.by_ids(connection, [caller.task_id])[caller.task_id]
        data = {"message": f"Files pass through the server: {why}", "level": "warning"}
        message = events.of_task(task, "task.message", core.clock.wall(), data, worker_id=caller.worker_id)
        events.append(connection, [message])

    await core.write(record_event)


async def _begin(
    core: ServerContext, direct: DirectUploads, caller: AttemptActor, digest: str, size_bytes: int
) -> ArrivingRow:
    await core.read(partial(_refuse_full, core=core, size_bytes=size_bytes))
    name, now = secrets.token_hex(16), core.clock.wall()
    ref = await asyncio.to_thread(direct.begin, name)
    row = ArrivingRow(name, caller.attempt_id, digest, size_bytes, part_bytes_of(size_bytes), ref, now, now)
    try:
        # Fail now and not after all parts were sent if the key is not allowed to list parts.
        await asyncio.to_thread(direct.parts, name, ref, _sizes(row))
        return await core.write(partial(_insert, core=core, caller=caller, row=row))
    except TunefleetError:
        await asyncio.to_thread(direct.discard, name, ref)
        raise


def _insert(connection: Connection, *, core: ServerContext, caller: AttemptActor, row: ArrivingRow) -> ArrivingRow:
    api_keys.refuse_ended(connection, caller)
    if arriving_of_attempt(connection, caller.attempt_id, row.digest) is not None:
        raise ConflictError(f"The upload of {row.digest[:12]}… was started twice at the same time.", hint="Try again.")
    # Check again in the transaction: a concurrent upload may have been stored first.
    _refuse_full(connection, core=core, size_bytes=row.size_bytes)
    insert_arriving(connection, row)
    return row


def _refuse_full(connection: Connection, *, core: ServerContext, size_bytes: int) -> None:
    if core.blobs.limit_bytes is None:
        return
    _, reserved_bytes = arriving_taken(connection)
    try:
        core.blobs.within_limit(size_bytes + reserved_bytes)
    except NoRoomError as error:
        if not reserved_bytes:
            raise
        message = f"{error.message} {reserved_bytes:,} bytes of these are reserved for other uploads in progress."
        raise NoRoomError(message, hint=error.hint) from None


def _find_resumable(
    connection: Connection, *, core: ServerContext, caller: AttemptActor, digest: str
) -> ArrivingRow | None:
    api_keys.refuse_ended(connection, caller)
    row = arriving_of_attempt(connection, caller.attempt_id, digest)
    if row is not None:
        touch_arriving(connection, row.name, core.clock.wall())
    return row


def _find_upload(
    connection: Connection, *, core: ServerContext, caller: AttemptActor, digest: str, name: str, reads: bool = False
) -> ArrivingRow:
    api_keys.refuse_ended(connection, caller)
    row = arriving_of_attempt(connection, caller.attempt_id, digest)
    if row is None or row.name != name:
        raise NotFoundError(f"This attempt has no upload {name[:64]} of {digest[:12]}….", hint="Request a plan first.")
    # Reading back may take longer than the grace period: touch the row ahead, so that it is not collected meanwhile.
    busy_s = row.size_bytes / _READ_BYTES_PER_S if reads else 0.0
    touch_arriving(connection, name, core.clock.wall() + busy_s)
    return row


def _direct(core: ServerContext) -> DirectUploads:
    direct = core.blobs.direct
    if direct is None or core.settings.direct_uploads == "off":
        raise ForbiddenError(
            "Files pass through this server.", hint="Set TUNEFLEET_DIRECT_UPLOADS=auto to allow direct uploads."
        )
    return direct


def _refuse_reading(core: ServerContext, row: ArrivingRow) -> None:
    if row.name in core.state(DirectUploadState).verifying:
        raise ConflictError(f"The upload of {row.digest[:12]}… is being read back.", hint="Try again in a moment.")


def _plan_of(row: ArrivingRow, present: set[int]) -> DirectPlan:
    count = len(_sizes(row))
    return DirectPlan(upload=row.name, part_bytes=row.part_bytes, parts=count, here=tuple(sorted(present)))


def _sizes(row: ArrivingRow) -> list[int]:
    return sizes_of(row.size_bytes, row.part_bytes)
