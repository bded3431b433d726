"""Datasets as somebody looks at them who is about to train: what is in a file, and what is wrong with it.

A bounded part of a file is read for a bounded time, in one of two threads that do nothing else: however many look at
once, everybody else gets their turns. No tokens are made here, for that takes a tokenizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from tunefleet.analysis.dataset.file_reader import SUFFIXES
from tunefleet.analysis.dataset.look import look
from tunefleet.errors import DataError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_submit
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.storage import artifacts
from tunefleet.schemas.api import ArtifactDetail, FileEntry
from tunefleet.schemas.datasets import DatasetLook


async def look_at(core: Core, actor: Actor, reference: str, *, path: str | None, rows: int) -> DatasetLook:
    """Look through a file of an artifact.

    Raises:
        DataError: If it has no file of rows.
    """
    found = await artifacts.get(core, actor, reference)
    entry = _file(found, path)
    name = PurePosixPath(entry.path).name
    return await _look(core, partial(look, name, core.blobs.pieces(entry.digest), entry.size_bytes, rows=rows))


async def look_at_beginning(
    core: Core, actor: Actor, name: str, size_bytes: int, beginning: bytes, *, rows: int
) -> DatasetLook:
    """Look through the first bytes of a file that is not uploaded yet.

    Raises:
        ForbiddenError: If who asks may not upload.
    """
    may_submit(actor)
    return await _look(core, partial(look, name, [beginning], size_bytes, rows=rows, most_bytes=len(beginning)))


async def _look(core: Core, work: Callable[[], DatasetLook]) -> DatasetLook:
    return await asyncio.get_running_loop().run_in_executor(core.looking, work)


def _file(artifact: ArtifactDetail, path: str | None) -> FileEntry:
    if path is not None:
        entry = next((file for file in artifact.files if file.path == path), None)
        if entry is None:
            raise NotFoundError(f"The artifact {artifact.name} has no file {path!r}.")
        return entry
    data = [file for file in artifact.files if PurePosixPath(file.path).suffix.lower() in SUFFIXES]
    if not data:
        raise DataError(
            f"{artifact.name} has no file of rows.", hint=f"Files of rows end in {', '.join(sorted(SUFFIXES))}."
        )
    return next((file for file in data if PurePosixPath(file.path).stem.startswith("train")), data[0])
