"""Abandoned direct uploads to the object store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from tunefleet.db.repositories import artifacts
from tunefleet.db.repositories.artifacts import ArrivingRow
from tunefleet.errors import (
    MachineError,
)
from tunefleet.orchestrator.context import ServerContext

log = logging.getLogger(__name__)


async def abort(core: ServerContext, row: ArrivingRow) -> None:
    """Abort an upload.

    Raises:
        UnreachableError: If the store cannot be reached.
        MachineError: If it refuses.
    """
    # The row is deleted last, so that an upload that the store fails to abort is retried.
    if core.blobs.direct is not None:
        await asyncio.to_thread(core.blobs.direct.discard, row.name, row.ref)
    await core.write(lambda connection: artifacts.delete_arriving(connection, row.name))


async def collect(core: ServerContext, unknown_s: float) -> int:
    """Abort uploads without progress during the grace period, and unknown uploads in the store."""
    direct, now = core.blobs.direct, core.clock.wall()
    if direct is None:
        return 0
    before = now - core.settings.garbage_grace_s
    abandoned = await core.read(lambda connection: artifacts.arriving_given_up(connection, before))
    abandoned = [row for row in abandoned if row.name not in core.state(DirectUploadState).verifying]
    for row in abandoned:
        await abort(core, row)
    # Read after the rows above; an upload that starts after this is too young for `sweep`.
    known_names = await core.read(artifacts.arriving_names)
    try:
        unknown = await asyncio.to_thread(direct.sweep, now - unknown_s, known_names)
    except MachineError as error:
        log.warning("Cannot remove unknown uploads from the object store: %s", error.detail or error)
        unknown = 0
    if abandoned or unknown:
        log.info("Aborted %d abandoned uploads to the object store.", len(abandoned) + unknown)
    return len(abandoned) + unknown


@dataclass(slots=True)
class DirectUploadState:
    """The direct uploads of this server.

    Args:
        verifying: Names of the uploads that this server is verifying.
        again_at: Until then, on the monotonic clock, direct uploads are off, because the object store refused one.
    """

    verifying: set[str] = field(default_factory=set)
    again_at: float = 0.0
