"""Server information and storage; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tunefleet.schemas.base import Message

# Storage categories. `results`: outputs of tasks except their `checkpoints`. `data`: pushed by users and campaigns.
# `federations`: versions, updates and chunks. `arriving`: uploads in progress. `unused`: unreferenced files. `working`:
# temporary files of the server.
Kept = Literal["results", "checkpoints", "data", "federations", "arriving", "unused", "database", "working"]


class HealthView(Message):
    """The server is alive.

    Args:
        role: `alone` with an exclusive database; otherwise whether it is the leader (`leads`) or `follows`.
    """

    status: Literal["ok"] = "ok"
    role: Literal["alone", "leads", "follows"]


class ServerView(Message):
    """Components of a server.

    Args:
        database: Database with version.
        artifacts: Artifact storage: `folder`, `shared folder`, `s3`, `gcs` or `azure`.
        elastic_scaling: Whether idle workers may be set to standby.
        data_dir: Data folder; for admins only.
    """

    version: str
    api: str = "v1"
    python: str
    platform: str
    schema_revision: str
    database: str
    artifacts: Literal["folder", "shared folder", "s3", "gcs", "azure"]
    elastic_scaling: bool
    data_dir: str | None = None


class StorageUse(Message):
    """Storage used by one category."""

    kind: Kept
    size_bytes: int
    files: int


class StorageView(Message):
    """Storage used by a server's data; a file with several references counts once, for the first of `uses`.

    Args:
        counted_at: Time of the count; may be a few seconds old.
        uses: All categories, including empty ones.
        log_bytes: Size of the logs in `database`, uncompressed.
        journal_records: Number of metrics, checkpoints, predictions and events in `database`.
        disk_free_bytes: Free space on the disk of the data folder.
    """

    counted_at: datetime
    uses: tuple[StorageUse, ...]
    total_bytes: int
    log_bytes: int
    journal_records: int
    disk_free_bytes: int
    disk_total_bytes: int


class PeerView(Message):
    """One of the servers on a database.

    Args:
        id: Its name, stored in its data folder.
        url: URL for other servers; null if unknown.
        leads: Whether it is the leader, which runs the scheduler.
        this: Whether it is the responding server.
        started_at: Start time by its own clock.
        silent_s: Seconds since its last heartbeat, as seen by the responding server.
    """

    id: str
    host: str
    url: str | None
    version: str
    leads: bool
    this: bool
    started_at: datetime
    silent_s: float


class PeersView(Message):
    """The servers that share a database.

    Args:
        shared: Whether several servers are possible; not with SQLite.
        epoch: Number of leader elections.
    """

    shared: bool
    epoch: int
    servers: tuple[PeerView, ...]
