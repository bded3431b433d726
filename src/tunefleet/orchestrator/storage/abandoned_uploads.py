"""What workers have begun to send to the object store, and did not bring to its end."""

from __future__ import annotations

import asyncio
import logging

from tunefleet.db.repositories import direct_uploads
from tunefleet.db.repositories.direct_uploads import ArrivingRow
from tunefleet.errors import MachineError
from tunefleet.orchestrator.context import Core

log = logging.getLogger(__name__)


async def abort(core: Core, row: ArrivingRow) -> None:
    """Abort an upload; its row goes last, so that one that the store does not let go of is tried again.

    Raises:
        UnreachableError: If the store does not answer.
        MachineError: If it refuses.
    """
    if core.blobs.direct is not None:
        await asyncio.to_thread(core.blobs.direct.discard, row.name, row.ref)
    await core.write(lambda connection: direct_uploads.delete_one(connection, row.name))


async def collect(core: Core, unknown_s: float) -> int:
    """Abort uploads with which nobody went on for the time of grace, and what the store has of unknown ones."""
    direct, now = core.blobs.direct, core.clock.wall()
    if direct is None:
        return 0
    before = now - core.settings.garbage_grace_s
    left = await core.read(lambda connection: direct_uploads.given_up(connection, before))
    left = [row for row in left if row.name not in core.reading]
    for row in left:
        await abort(core, row)
    # Asked for after the rows: what is begun meanwhile is too young.
    spare = await core.read(direct_uploads.names)
    try:
        unknown = await asyncio.to_thread(direct.sweep, now - unknown_s, spare)
    except MachineError as error:
        log.warning("What unknown uploads left in the object store stays there: %s", error.detail or error)
        unknown = 0
    if left or unknown:
        log.info("Aborted %d uploads to the object store with which nobody went on.", len(left) + unknown)
    return len(left) + unknown
