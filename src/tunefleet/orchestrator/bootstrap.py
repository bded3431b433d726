"""Open a server's data folder, database and artifact store, and build the server context from them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import tunefleet
from tunefleet.db import Connection, Database
from tunefleet.db.access import keys
from tunefleet.db.engine.locks import FolderLock
from tunefleet.db.engine.offline import name_of, target_of
from tunefleet.db.engine.writer import EVERYTHING
from tunefleet.observability.spans import open_spans
from tunefleet.orchestrator.access.permissions import KEYS, KeyCache
from tunefleet.orchestrator.context import Clock, ServerContext
from tunefleet.orchestrator.counters import Meters
from tunefleet.orchestrator.fleet import engines as clusters
from tunefleet.orchestrator.ha import storage_marker
from tunefleet.orchestrator.notifications.triggers import CHANNELS, NotificationTriggers
from tunefleet.orchestrator.observability.commit_metrics import Commits
from tunefleet.orchestrator.observability.task_spans import TaskSpans
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.orchestrator.scheduling.fair_share import Ledger
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.blob_stores import open_blobs
from tunefleet.settings import ServerSettings

_SECRET: Final = "server_secret"


def open_context(settings: ServerSettings, *, clock: Clock | None = None, adopt_files: bool = False) -> ServerContext:
    """Open a data folder, or create it.

    Raises:
        StoreError: If another process uses the folder or the database, something in it cannot be used, or database,
            files and folder do not belong together.
        MachineError: If the artifact store cannot be used or differs from that of the database's other servers, or a
            configured engine is not available on this machine.
        UnreachableError: If the artifact store cannot be reached.
    """
    url, clock = settings.database_url, clock or Clock()
    meters = Meters(clock.wall) if settings.metrics != "off" else None
    spans = open_spans(settings.otlp_endpoint, "tunefleet-server", tunefleet.__version__)
    with ExitStack() as rollback:
        # Before anything is opened: a second server must not touch what the first one uses.
        locks = [FolderLock.take(settings.data_dir)]
        rollback.callback(locks[0].release)
        target = target_of(None if url is None else url.get_secret_value(), settings.data_dir)
        if isinstance(target, Path):
            # SQLite has no notifications between servers, so only one may use the file; PostgreSQL has LISTEN/NOTIFY.
            locks.append(FolderLock.take_database(target, settings.data_dir))
            rollback.callback(locks[1].release)
        engines = clusters.engines_of(settings)
        blobs = open_blobs(settings)
        rollback.callback(blobs.close)
        signals, cache = PubSub(), KeyCache()
        watch = NotificationTriggers(settings.public_base_url, shared_admin=settings.shared_token is not None)
        database = Database.open(
            target,
            synchronous=settings.synchronous,
            on_wake=_commit_hook(signals, cache, watch),
            before_commit=Commits(meters, None if spans is None else TaskSpans(spans, clock.wall), watch),
        )
        rollback.callback(database.close)
        blobs.others_write = database.shared
        name, folder, now = name_of(target), settings.data_dir, clock.wall()
        storage_marker.check(database, name, blobs, folder, now=now, adopt=adopt_files)
        blobs.limit_bytes = settings.storage_limit_bytes
        database.write(lambda connection: capacity.count(connection, blobs)).result()
        # Stored in the database, so that all servers accept each other's attempt tokens.
        secret = bytes.fromhex(database.write(_server_secret).result())
        # Everything is open: from here on the context owns and closes it.
        rollback.pop_all()
    core = ServerContext(
        settings, database, blobs, signals, secret, clock,
        meters=meters, spans=spans,
        _locks=locks,
    )  # fmt: skip
    core.put_state(engines)
    core.put_state(cache)
    core.state(Ledger, lambda: Ledger(settings.share_half_life_s))
    if meters is not None:
        # Created after the context, which it reads from.
        from tunefleet.orchestrator.observability.gauges import Gauges  # noqa: PLC0415

        meters.registry.register(core.state(Gauges, lambda: Gauges(meters.kind)))
        database.observe(meters.group.observe, meters.commit_s.observe)
    return core


def _commit_hook(signals: PubSub, cache: KeyCache, watch: NotificationTriggers) -> Callable[[frozenset[str]], None]:
    """Return the hook that runs after a commit of this or another server: it clears caches and wakes waiters."""

    def on_commit(topics: frozenset[str]) -> None:
        # Caches first: a waiter that wakes must not authenticate with a revoked key.
        if not topics.isdisjoint({KEYS, EVERYTHING}):
            cache.forget()
        if not topics.isdisjoint({CHANNELS, EVERYTHING}):
            watch.forget()
        if EVERYTHING in topics:
            signals.notify_all()
        else:
            signals.notify(*topics)

    return on_commit


def _server_secret(connection: Connection) -> str:
    known = keys.get_meta(connection, _SECRET)
    if known is None:
        known = secrets.token_hex(32)
        keys.put_meta(connection, _SECRET, known)
    return known
