"""Verification of stored files against their digests: on push of a known file, in the background, and on demand.

Damaged files (bit rot) are quarantined and count as missing; pushing the same file again restores it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.context import ServerContext

log = logging.getLogger(__name__)
# Files verified within this time are not read again on push: many clients push the same file.
RECENT_S: Final = 600.0
# Files verified within this time are not read again in the background.
REVERIFY_S: Final = 86_400.0
# Minimum bytes per background pass, followed by a pause that limits the read rate.
_PASS_BYTES: Final = 64 << 20


@dataclass(slots=True)
class Verified:
    """Progress of the background verification of stored files.

    Args:
        at: Digest → when it was found intact, on the monotonic clock.
        cursor: The digest that was verified last.
    """

    at: dict[str, float] = field(default_factory=dict)
    cursor: str = ""


def is_intact(blobs: BlobStore, digest: str, *, pace: Callable[[int], None] = lambda _: None) -> bool:
    """Read a file and return whether it matches its digest; blocks."""
    found = hashlib.sha256()
    for piece in blobs.pieces(digest):
        found.update(piece)
        pace(len(piece))
    return found.hexdigest() == digest


def damaged(blobs: BlobStore, digests: Iterable[str], verified: Verified, *, good_s: float = RECENT_S) -> Iterator[str]:
    """Yield the files that are missing or damaged, and quarantine the damaged ones; blocks."""
    for digest in digests:
        now = time.monotonic()
        if now - verified.at.get(digest, -good_s) < good_s:
            continue
        try:
            intact = is_intact(blobs, digest) if blobs.may_rot else blobs.has(digest)
        except NotFoundError:
            intact = False
        if intact:
            verified.at[digest] = now
        else:
            quarantine(blobs, digest)
            yield digest


def quarantine(blobs: BlobStore, digest: str) -> None:
    """Move a damaged file to the store's `quarantine` folder."""
    if blobs.set_aside(digest):
        log.error("The stored file %s is damaged; moved to %s.", digest, blobs.root / "quarantine")


async def run_for_a_while(core: ServerContext) -> None:
    """Verify some stored files at the configured read rate; the leader calls it in a loop."""
    speed = core.settings.scrub_bytes_per_s
    if not speed or not core.blobs.may_rot:
        await asyncio.sleep(REVERIFY_S)
        return
    began, read, cursor = time.monotonic(), 0, core.state(Verified).cursor
    found = sorted(await asyncio.to_thread(core.blobs.kept_before, float("inf")))
    for digest in [each for each in found if each > cursor] or found:
        core.state(Verified).cursor = digest
        size = core.blobs.find(digest) or 0
        for bad in await asyncio.to_thread(_damaged, core, digest):
            await _log_artifacts(core, bad)
        read += size
        if read >= _PASS_BYTES:
            break
    else:
        core.state(Verified).cursor = ""
        await asyncio.sleep(60.0)  # a full pass is done; start over, skipping recently verified files
    await asyncio.sleep(max(0.0, read / speed - (time.monotonic() - began)))


async def _log_artifacts(core: ServerContext, digest: str) -> None:
    affected = await core.read(partial(artifacts_with, digest=digest))
    log.error(
        "%s belongs to %s. Push it again, or restore it from a backup.", digest, ", ".join(affected) or "no artifact"
    )


def artifacts_with(connection: Connection, *, digest: str) -> tuple[str, ...]:
    """Return the names and ids of the artifacts that contain a file."""
    return tuple(f"{row.name} ({row.id})" for row in artifacts.holding_file(connection, digest=digest))


def _damaged(core: ServerContext, digest: str) -> list[str]:
    return list(damaged(core.blobs, [digest], core.state(Verified), good_s=REVERIFY_S))
