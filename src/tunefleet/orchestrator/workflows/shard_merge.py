"""Merge the exported files of a task's shards into one file, and end the task.

Files may be large: they are copied in a thread, in pieces, outside of any transaction. The work to do is derived from
the tasks, so that a server restarts it after a crash; equal files have equal digests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.artifacts import BlobStore, Intake, NoRoomError
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts, dependencies, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, NotFoundError, TunefleetError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.cluster_state import JoinWait, MergeWaits
from tunefleet.orchestrator.storage import result_files as results
from tunefleet.orchestrator.storage import signed_urls
from tunefleet.orchestrator.tasks import fan_out
from tunefleet.orchestrator.tasks.transitions import switch
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.worker_guide import SINGLE_FILE

log = logging.getLogger(__name__)
# Backoff after the first failure, doubled after each further one up to `SWEEP_S`.
RETRY_S: Final = 10.0
# Time between two runs without a notification.
SWEEP_S: Final = 300.0
_NEWLINE: Final = b"\n"


@dataclass(frozen=True, slots=True)
class _Merge:
    """A task whose shards have completed, with the files to merge."""

    row: TaskRow
    name: str
    base: str
    digests: tuple[str, ...]
    size_bytes: int


async def run_once(core: ServerContext) -> int:
    """Merge the files of every task whose shards have completed, and end it.

    Returns:
        The number of tasks that failed; each is retried after its own backoff and does not block the others.
    """
    seqs = await core.read(dependencies.parents_done)
    core.state(MergeWaits).by_task = {seq: wait for seq, wait in core.state(MergeWaits).by_task.items() if seq in seqs}
    for seq in seqs:
        wait = core.state(MergeWaits).by_task.get(seq)
        if wait is not None and core.clock.monotonic() < wait.until:
            continue
        try:
            await _end(core, seq)
        except (TunefleetError, OSError) as error:
            # Not raised: one task whose files cannot be merged must not block the others.
            log.warning("Merging the shards of a task failed, and is retried later: %s", error)
            core.state(MergeWaits).by_task[seq] = _backoff(core, error, wait.failures if wait is not None else 0)
        else:
            core.state(MergeWaits).by_task.pop(seq, None)
    return len(core.state(MergeWaits).by_task)


def pause_s(core: ServerContext) -> float:
    """Return the seconds until the next call if nothing changes."""
    due = min((wait.until for wait in core.state(MergeWaits).by_task.values()), default=float("inf"))
    return min(max(due - core.clock.monotonic(), 0.0), SWEEP_S)


def _backoff(core: ServerContext, error: Exception, failures: int) -> JoinWait:
    what = "wait for disk space" if isinstance(error, NoRoomError) else "are merged later"
    reason = error.message if isinstance(error, TunefleetError) else str(error)
    pause_s = min(RETRY_S * 2.0 ** min(failures, 16), SWEEP_S)
    return JoinWait(failures + 1, core.clock.monotonic() + pause_s, f"{what}: {reason.rstrip('.')}")


async def _end(core: ServerContext, seq: int) -> None:
    merge_job = await core.read(partial(_plan, seq=seq, public=core.settings.public_base_url))
    merged_file: Mapping[str, Any] | None = None
    if merge_job is not None:
        try:
            merged_file = await _merge_files(core, merge_job)
        except NotFoundError as error:
            log.warning("No merged file for %s (%s): %s", merge_job.row.name, merge_job.row.id, error)
    await core.write(partial(_finish, seq=seq, merged_file=merged_file, now=core.clock.wall()))


def _plan(connection: Connection, *, seq: int, public: str | None) -> _Merge | None:
    """Return the merge of a task; None if a shard's file is not on this server."""
    parts = dependencies.shards_of_parents(connection, [seq]).get(seq, [])
    exports = fan_out.exported_results(fan_out.results_of(connection, parts))
    if exports is None:
        return None
    # Without a configured public URL, the address that the shards' worker reached the server at is used.
    base = public or signed_urls.base_of(exports[0].get("url"), parts[0].id)
    found = [_file(connection, part, str(export["artifact_name"])) for part, export in zip(parts, exports, strict=True)]
    files = [each for each in found if each is not None]
    if base is None or len(files) < len(found):
        return None
    (row,) = tasks.by_seqs(connection, [seq])
    # The last line of a file may lack its newline.
    size_bytes = sum(size + len(_NEWLINE) for _, size in files)
    return _Merge(row, str(exports[0]["artifact_name"]), base, tuple(digest for digest, _ in files), size_bytes)


def _file(connection: Connection, part: TaskRow, name: str) -> tuple[str, int] | None:
    rows = artifacts.named(connection, project=part.project, name=name, task_id=part.id)
    single = next((row for row in rows if orjson.loads(row.metadata).get(SINGLE_FILE)), None)
    files = artifacts.files(connection, single.id) if single is not None else []
    return files[0][1:] if len(files) == 1 else None


async def _merge_files(core: ServerContext, merge_job: _Merge) -> dict[str, Any]:
    """Merge the files if there is space, publish the result as the task's own, and return its URLs."""
    await asyncio.to_thread(core.blobs.expect, merge_job.size_bytes)
    work = partial(_concatenate, core.blobs, merge_job.digests, stopped=lambda: core.signals.closed)
    loop = asyncio.get_running_loop()
    digest, size_bytes = await loop.run_in_executor(core.blobs.executor, work)
    row = merge_job.row
    publisher = Actor(f"parts of {row.id}", row.owner, "admin", row.project)
    entry = FileEntry(path=merge_job.name, digest=digest, size_bytes=size_bytes)
    url = (await results.store(core, publisher, row.id, entry, results.signer(core, merge_job.base), of_job=True)).url
    named = {"artifact_name": merge_job.name, "uploaded": True}
    return {**named, "path": url, "url": url, "download_url": url}


def _concatenate(
    blobs: BlobStore, digests: Sequence[str], *, stopped: Callable[[], bool] = lambda: False
) -> tuple[str, int]:
    """Concatenate files, each ended with a newline, into a new one; return digest and size in bytes."""
    with Intake(blobs) as intake:
        for digest in digests:
            last = _NEWLINE
            for piece in blobs.pieces(digest):
                if stopped():
                    raise ConflictError("The server is shutting down.")
                intake.write(piece)
                last = piece[-1:]
            if last != _NEWLINE:
                intake.write(_NEWLINE)
        return intake.finish(), intake.size_bytes


def _finish(connection: Connection, *, seq: int, merged_file: Mapping[str, Any] | None, now: float) -> None:
    rows = [row for row in tasks.by_seqs(connection, [seq], lock=True) if row.status == TaskStatus.RUNNING]
    found = dependencies.shards_of_parents(connection, [row.seq for row in rows])
    # The task may have been cancelled meanwhile; the published file is then removed with it.
    moves = [
        fan_out.finished(
            connection,
            row,
            found[row.seq],
            fan_out.merge_results(fan_out.results_of(connection, found[row.seq]), merged_file),
            now,
        )
        for row in rows
    ]
    switch(connection, moves, now)
