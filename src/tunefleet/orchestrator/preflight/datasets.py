"""Dataset preview before training: the content of a file, and problems in it.

A bounded part of a file is read for a bounded time, in a pool of two threads, so that many previews do not slow down
other requests. Rows are not tokenized, because the server loads no tokenizers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from tunefleet.analysis.dataset.file_reader import SUFFIXES
from tunefleet.analysis.dataset.preview import look
from tunefleet.errors import DataError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import artifacts
from tunefleet.schemas.api import ArtifactDetail, FileEntry
from tunefleet.schemas.datasets import DatasetLook


async def inspect(core: ServerContext, actor: Actor, reference: str, *, path: str | None, rows: int) -> DatasetLook:
    """Preview a file of an artifact.

    Raises:
        DataError: If it has no data file.
    """
    found = await artifacts.get(core, actor, reference)
    entry = _file(found, path)
    name = PurePosixPath(entry.path).name
    return await _look(core, partial(look, name, core.blobs.pieces(entry.digest), entry.size_bytes, rows=rows))


async def inspect_beginning(
    core: ServerContext, actor: Actor, name: str, size_bytes: int, beginning: bytes, *, rows: int
) -> DatasetLook:
    """Preview the first bytes of a file that is not uploaded yet.

    Raises:
        ForbiddenError: If the actor may not upload.
    """
    may_submit(actor)
    return await _look(core, partial(look, name, [beginning], size_bytes, rows=rows, most_bytes=len(beginning)))


async def _look(core: ServerContext, work: Callable[[], DatasetLook]) -> DatasetLook:
    return await asyncio.get_running_loop().run_in_executor(core.dataset_threads, work)


def _file(artifact: ArtifactDetail, path: str | None) -> FileEntry:
    if path is not None:
        entry = next((file for file in artifact.files if file.path == path), None)
        if entry is None:
            raise NotFoundError(f"Artifact {artifact.name} has no file {path!r}.")
        return entry
    data = [file for file in artifact.files if PurePosixPath(file.path).suffix.lower() in SUFFIXES]
    if not data:
        raise DataError(
            f"{artifact.name} has no data file.", hint=f"Supported file types: {', '.join(sorted(SUFFIXES))}."
        )
    return next((file for file in data if PurePosixPath(file.path).stem.startswith("train")), data[0])
