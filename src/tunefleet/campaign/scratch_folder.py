"""Temporary folders for the files of a step."""

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
async def step_folder(context: StepContext, what: str) -> AsyncIterator[Path]:
    """Yield an empty folder on the disk of the server's data, removed afterwards."""
    # In a thread, as its removal below: models are large.
    made = await asyncio.to_thread(_made, context.repository.folder, what)
    try:
        yield made
    finally:
        await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)


async def clear(folder: Path) -> None:
    """Remove the folders that a killed process has left."""
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def disk_full_error(error: OSError, folder: Path) -> StepFailed | None:
    """Convert an OSError to a StepFailed if the disk is full; None for any other error."""
    if not is_disk_full(error):
        return None
    where = error.filename if isinstance(error.filename, str) else folder
    return StepFailed(
        f"The server's disk is full: {where}.",
        hint="Free disk space, or move the server's data to a larger disk (TUNEFLEET_DATA).",
    )


def _made(within: Path, what: str) -> Path:
    within.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{what}-", dir=within))
