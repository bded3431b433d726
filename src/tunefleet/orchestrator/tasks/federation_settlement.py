"""Finish training tasks whose federation has ended: the newest version becomes the task's adapter.

Pending work is derived from the tasks and federations, so that a restarted server resumes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.artifacts import manifest_digest
from tunefleet.db import Connection
from tunefleet.db.federations import federation_versions, federations
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts, dependencies, events, tasks
from tunefleet.db.repositories.task_transitions import Move
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.adapter_files import archive_of, with_archive
from tunefleet.orchestrator.federation.rounds import worker_of
from tunefleet.orchestrator.federation.status import spec_of
from tunefleet.orchestrator.federation.version_publisher import KIND
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.storage import signed_urls
from tunefleet.orchestrator.storage.signed_urls import Signer
from tunefleet.orchestrator.tasks import fan_out
from tunefleet.orchestrator.tasks.transitions import switch
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.worker_guide import ARCHIVE_KIND, SINGLE_FILE

# Interval between scans without a notification.
SWEEP_S: Final = 60.0
PRODUCT: Final = "final_lora"
ARCHIVE: Final = f"{PRODUCT}.tar.gz"
# Result keys that describe a shard's own adapter.
_SHARD_ONLY_KEYS: Final = tuple(
    f"{PRODUCT}_{key}" for key in ("path", "archive", "archive_path", "archive_url", "archive_bytes")
)


async def run_once(core: ServerContext) -> None:
    """Finish every task whose federation has ended or was cancelled."""
    for seq in await core.read(federations.unsettled):
        version = await core.read(partial(_newest_version, seq=seq))
        # Packing takes long: outside the transaction, which only records the archive.
        if version is not None:
            await with_archive(core, version)
        await core.write(partial(_settle, core=core, seq=seq, now=core.clock.wall()))


def _newest_version(connection: Connection, *, seq: int) -> VersionRow | None:
    federation = federations.of_tasks(connection, [seq]).get(seq)
    return None if federation is None else federation_versions.get(connection, federation.seq, federation.version)


def _settle(connection: Connection, *, core: ServerContext, seq: int, now: float) -> None:
    rows = [row for row in tasks.by_seqs(connection, [seq], lock=True) if row.status == TaskStatus.RUNNING]
    for row in rows:
        federation = federations.of_tasks(connection, [seq], lock=True)[seq]
        parts = dependencies.shards_of_parents(connection, [seq])[seq]
        if federation.status == FederationStatus.CANCELLED:
            error = f"Its federation {federation.id} was cancelled."
            switch(connection, [Move(row, TaskReason.UPSTREAM_CANCELLED, changes={"error": error})], now)
        elif all(TaskStatus(part.status).final for part in parts):
            ended = _ended(connection, core, row, federation, parts, now)
            switch(connection, [] if ended is None else [ended], now)


def _ended(
    connection: Connection,
    core: ServerContext,
    row: TaskRow,
    federation: FederationRow,
    parts: Sequence[TaskRow],
    now: float,
) -> Move | None:
    """Return a task's final transition; None if its newest version has no archive yet, after a rollback."""
    version = federation_versions.get(connection, federation.seq, federation.version)
    if version is None:
        least = spec_of(federation).min_workers
        error = f"No round of its federation {federation.id} has had the updates of {least} parts."
        return Move(row, TaskReason.CRASHED, changes={"error": error})
    results = fan_out.results_of(connection, parts)
    packed, base = archive_of(version), _base(results, parts)
    # A rollback since the archive was made: the next run makes the archive of the new version first.
    if base is not None and packed is None:
        return None
    found = _result(row, federation, version, parts, results)
    about = {"federation": federation.id, "version": version.version}
    files = [FileEntry(path=path, digest=d, size_bytes=size) for path, d, size in orjson.loads(version.files)]
    _publish(connection, row, PRODUCT, KIND, files, about, now)
    if base is not None and packed is not None:
        archive = packed.model_copy(update={"path": ARCHIVE})
        _publish(connection, row, ARCHIVE, ARCHIVE_KIND, [archive], {**about, SINGLE_FILE: True}, now)
        expires = int(core.clock.wall() + core.settings.links_last_s)
        signer = Signer(core.secret, (core.settings.public_base_url or base).rstrip("/"), expires)
        found |= {
            f"{PRODUCT}_archive": ARCHIVE,
            f"{PRODUCT}_archive_url": signer.link(row.id, ARCHIVE, archive.digest),
            f"{PRODUCT}_archive_bytes": archive.size_bytes,
            f"{PRODUCT}_archive_uploaded": True,
        }
    return fan_out.finished(connection, row, parts, found, now)


def _base(results: Sequence[Mapping[str, Any]], parts: Sequence[TaskRow]) -> str | None:
    """Return the server's base URL as seen by a worker that packed its adapter; None if no shard had to."""
    found = (
        signed_urls.base_of(result.get(f"{PRODUCT}_archive_url"), part.id)
        for result, part in zip(results, parts, strict=True)
    )
    return next((base for base in found if base is not None), None)


def _publish(
    connection: Connection,
    row: TaskRow,
    name: str,
    kind: str,
    files: Sequence[FileEntry],
    about: Mapping[str, Any],
    now: float,
) -> None:
    """Publish stored files as an artifact of a task."""
    values = {
        "id": new_id("art"), "project": row.project, "name": name, "kind": kind, "digest": manifest_digest(files),
        "size_bytes": sum(each.size_bytes for each in files), "file_count": len(files), "task_id": row.id,
        "attempt_id": None, "owner": row.owner, "created_at": now, "metadata": orjson.dumps(about).decode(),
    }  # fmt: skip
    artifacts.insert_one(connection, values, [(each.path, each.digest, each.size_bytes) for each in files])
    data = {key: values[key] for key in ("id", "name", "kind", "digest", "size_bytes")}
    events.append(connection, [events.of_task(row, "artifact.published", now, data)])


def _result(
    row: TaskRow,
    federation: FederationRow,
    version: VersionRow,
    parts: Sequence[TaskRow],
    results: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the result of a federated training run: the values that all shards share, and a summary of each."""
    done = [result for part, result in zip(parts, results, strict=True) if part.status == TaskStatus.COMPLETED]
    agreed = {key: value for key, value in fan_out.merge_results(done).items() if key not in _SHARD_ONLY_KEYS}
    rows = [result.get("dataset_size") for result in done]
    summary: dict[str, Any] = orjson.loads(version.summary)
    return {
        **agreed,
        "task_id": row.id,
        "training_successful": True,
        "error_message": None,
        "dataset_size": sum(rows) if rows and all(isinstance(each, int) for each in rows) else None,
        **dict.fromkeys(_SHARD_ONLY_KEYS),
        f"{PRODUCT}_archive_uploaded": False,
        "federation": {
            "id": federation.id,
            "status": federation.status,
            "version": version.version,
            "strategy": version.strategy,
            **summary,
            "parts": [
                {
                    "worker": worker_of(number),
                    "task_id": part.id,
                    "status": part.status,
                    "error": part.error,
                    "rows": result.get("dataset_size"),
                    "steps": result.get("steps"),
                    "losses": result.get("losses"),
                }
                for number, (part, result) in enumerate(zip(parts, results, strict=True))
            ],
        },
    }
