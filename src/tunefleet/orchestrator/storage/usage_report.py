"""Server information and disk usage."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import tunefleet
from tunefleet.db import DEFAULT_PROJECT, Connection
from tunefleet.db.engine import migrate, statistics
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import blob_stores, checkpoint_retention
from tunefleet.orchestrator.storage.blob_stores import kind as store_kind
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.api import Role, ServerInfo
from tunefleet.schemas.server_info import HealthView, Kept, ServerView, StorageUse, StorageView

# Maximum age of a count, which scans all files and rows.
FRESH_S: Final = 5.0
_KINDS: Final[tuple[Kept, ...]] = (
    "results", "checkpoints", "federations", "data", "arriving", "unused", "database", "working",
)  # fmt: skip


@dataclass(slots=True)
class Count:
    """The cached count of a server's data; concurrent requests share one."""

    _view: StorageView | None = None
    _at: float = 0.0
    _counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, core: ServerContext) -> StorageView:
        """Return the count, refreshed if it is too old."""
        async with self._counting:
            now = core.clock.monotonic()
            if self._view is None or now - self._at >= FRESH_S:
                self._view, self._at = await _count(core), core.clock.monotonic()
            return self._view

    def forget(self) -> None:
        """Refresh the count on the next request."""
        self._view = None


def health(core: ServerContext) -> HealthView:
    """Return the role of this server among those on its database, without a query."""
    if not core.leading.shared:
        return HealthView(role="alone")
    return HealthView(role="leads" if core.leading.leads(core.clock.monotonic()) else "follows")


def info(actor: Actor) -> ServerInfo:
    """Return the server version and the identity of the caller."""
    return ServerInfo(
        version=tunefleet.__version__,
        authenticated=True,
        role=cast("Role", actor.role),
        owner=actor.owner,
        project=actor.project,
        key_id=actor.key_id,
    )


async def storage(core: ServerContext, actor: Actor) -> StorageView:
    """Return the disk usage of the server's data.

    Raises:
        ForbiddenError: If the actor is not in the default project: the report covers all projects.
    """
    may_read(actor)
    if actor.project != DEFAULT_PROJECT:
        raise ForbiddenError(
            f"The server's disk usage is visible only to keys of project {DEFAULT_PROJECT}.",
            hint=f"See `tunefleet projects show {actor.project}` for your project's usage.",
        )
    return await core.state(Count).get(core)


async def server(core: ServerContext, actor: Actor) -> ServerView:
    """Return versions and configuration of the server; its data folder is visible to admins only."""
    may_read(actor)
    return ServerView(
        version=tunefleet.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        schema_revision=migrate.HEAD,
        database=await core.read(statistics.engine),
        artifacts=store_kind(core.settings),
        elastic_scaling=core.settings.elastic,
        data_dir=str(core.settings.data_dir.absolute()) if actor.role == "admin" else None,
    )


async def _count(core: ServerContext) -> StorageView:
    now = core.clock.wall()

    def stored(connection: Connection) -> tuple[dict[str, tuple[int, int]], int, int]:
        kept = statistics.of_files(connection, checkpoint=checkpoint_retention.KIND, now=now)
        count, size = kept.get("arriving", (0, 0))
        other_files, other_bytes = artifacts.arriving_taken(connection)
        kept["arriving"] = (count + other_files, size + other_bytes)
        kept["database"] = statistics.of_database(connection)
        return kept, statistics.of_logs(connection), statistics.of_journals(connection)

    kept, log_bytes, journal_records = await core.read(stored)
    unrecorded, disk_total, disk_free = await asyncio.to_thread(_unrecorded, core)
    uses = []
    for kind in _KINDS:
        count, size = kept.get(kind, (0, 0))
        other_files, other_bytes = unrecorded.get(kind, (0, 0))
        uses.append(StorageUse(kind=kind, files=count + other_files, size_bytes=size + other_bytes))
    return StorageView(
        counted_at=to_datetime(now),
        uses=tuple(uses),
        total_bytes=sum(each.size_bytes for each in uses),
        log_bytes=log_bytes,
        journal_records=journal_records,
        disk_free_bytes=disk_free,
        disk_total_bytes=disk_total,
    )


def _unrecorded(core: ServerContext) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Return count and bytes of files without a row, by kind, and total and free disk space; blocks."""
    disk = shutil.disk_usage(core.settings.data_dir)
    found = {
        "arriving": _sum(core.blobs.uploads.glob("*.part")),
        "working": _sum(_below(blob_stores.federation_folder(core))),
    }
    return found, disk.total, disk.free


def _below(root: Path) -> Iterator[Path]:
    """Yield the files below a folder; a folder that is removed meanwhile yields none."""
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names)


def _sum(paths: Iterator[Path]) -> tuple[int, int]:
    count = size = 0
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # removed meanwhile
        if path.is_file():
            count, size = count + 1, size + status.st_size
    return count, size
