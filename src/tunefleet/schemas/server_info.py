"""What a server is and what it keeps; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tunefleet.schemas.base import Message

# What takes room. `results`: what tasks have made, but for their `checkpoints`. `data`: what users and campaigns have
# pushed. `federations`: versions, updates and chunks. `arriving`: uploads on their way. `unused`: files that nothing
# refers to. `working`: what the server unpacks while it works.
Kept = Literal["results", "checkpoints", "data", "federations", "arriving", "unused", "database", "working"]


class HealthView(Message):
    """The server answers.

    Args:
        role: `alone` if it has its database to itself; else whether it `leads` the servers on it, or `follows`.
    """

    status: Literal["ok"] = "ok"
    role: Literal["alone", "leads", "follows"]


class ServerView(Message):
    """What a server is made of.

    Args:
        database: What keeps them, with its version.
        artifacts: What keeps files: `folder`, `shared folder`, `s3`, `gcs` or `azure`.
        elastic_scaling: Whether idle workers may rest.
        data_dir: Its folder; for admins only.
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
    """How much room one kind of thing takes."""

    kind: Kept
    size_bytes: int
    files: int


class StorageView(Message):
    """How much room a server's data takes; a file that several things refer to counts once, for the first of `uses`.

    Args:
        counted_at: When; an answer may be a few seconds old.
        uses: All kinds, empty ones too.
        log_bytes: What is in `database` of logs, as they came.
        journal_records: How many metrics, checkpoints, predictions and events of trainings are in `database`.
        disk_free_bytes: Where the server's folder lies.
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
        id: Its name; it stays with its data folder.
        url: Under which other servers reach it; null if it has not said.
        leads: Whether it places work, and remembers workers.
        this: Whether it is the one that answers.
        started_at: By its own clock.
        silent_s: For how long the one that answers has not seen it renew its row; one that was killed grows silent.
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
        shared: Whether there can be several; one on SQLite is alone.
        epoch: How often the lead was taken.
    """

    shared: bool
    epoch: int
    servers: tuple[PeerView, ...]
