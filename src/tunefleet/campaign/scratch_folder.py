"""A folder for the files of a step, which goes with them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tunefleet.campaign.contract import StepContext, StepFailed
from tunefleet.errors import is_disk_full


@contextlib.asynccontextmanager
async def room(context: StepContext, what: str) -> AsyncIterator[Path]:
    """Yield an empty folder beside the server's data; models are large, so that it is made and removed in threads."""
    made = await asyncio.to_thread(_made, context.book.folder, what)
    try:
        yield made
    finally:
        await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)


async def clear(folder: Path) -> None:
    """Remove what a process that was killed has left."""
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def said_full(error: OSError, folder: Path) -> StepFailed | None:
    """Return a fault of the system as a sentence, if it says that a disk is full; null if it says something else."""
    if not is_disk_full(error):
        return None
    where = error.filename if isinstance(error.filename, str) else folder
    return StepFailed(
        f"There is no room left on the disk of the server for {where}.",
        hint="Make room there, or move the server's data to a larger disk (TUNEFLEET_DATA).",
    )


def _made(within: Path, what: str) -> Path:
    within.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{what}-", dir=within))
