"""Artifacts and their files: upload, publish, read and remove.

A file is known once the store has verified its digest. A caller that learns that a file exists holds a pin on it, so
that it is not collected before it is published.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.artifacts import check_files, manifest_digest
from tunefleet.db import DEFAULT_PROJECT, Connection
from tunefleet.db.repositories import artifacts, events, tasks
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import ArtifactRow
from tunefleet.errors import ArtifactError, ConflictError, ForbiddenError, NotFoundError, OffsetConflict
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.api_keys import refuse_ended
from tunefleet.orchestrator.access.permissions import (
    Actor,
    AttemptActor,
    Caller,
    has_quota,
    may_change,
    may_read,
    may_submit,
)
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id, only_match
from tunefleet.orchestrator.storage import (
    artifact_origin,
    capacity,
    checkpoint_retention,
    garbage_collection,
    verification,
)
from tunefleet.orchestrator.storage.garbage_collection import Collected
from tunefleet.orchestrator.storage.verification import Verified
from tunefleet.orchestrator.views import artifact_detail, artifact_view, before_cursor, bounded_limit, split_page
from tunefleet.schemas.api import (
    ArtifactCreate,
    ArtifactDetail,
    ArtifactView,
    BlobMissing,
    BlobQuery,
    BlobReply,
    Page,
)

PIN_S: Final = 24 * 3600.0
_LIST_HINT: Final = "List pushed data with `tunefleet data ls`, results of runs with `tunefleet artifacts ls`."


def scope_of(project: str) -> str:
    """Return the scope that separates a project's unfinished uploads from those of others."""
    return "" if project == DEFAULT_PROJECT else project


async def missing(core: ServerContext, caller: Caller, query: BlobQuery) -> BlobReply:
    """Return which files must be uploaded; the others are pinned for the caller.

    Raises:
        ForbiddenError: If the caller may not upload.
        QuotaError: If the missing files exceed the project's storage quota.
    """
    _may_upload(caller)
    digests = [entry.digest for entry in query.blobs]

    def operation(connection: Connection) -> set[str]:
        known = artifacts.known(connection, caller.project, digests)
        if has_quota(caller):
            missing_digests = {entry.digest: entry.size_bytes for entry in query.blobs if entry.digest not in known}
            quotas.refuse_storing(connection, caller.project, sum(missing_digests.values()))
        artifacts.pin(connection, sorted(known), holder=_holder(caller), until=core.clock.wall() + PIN_S)
        return known

    known = await core.write(operation)
    # Files that a disk has damaged are requested again: this is the moment at which a client can repair them.
    lost = await asyncio.to_thread(lambda: set(verification.damaged(core.blobs, sorted(known), core.state(Verified))))
    missing_digests = sorted((set(digests) - known) | lost)
    return BlobReply(
        missing=tuple(
            BlobMissing(digest=digest, offset=core.blobs.partial_size(digest, scope_of(caller.project)))
            for digest in missing_digests
        )
    )


async def reserve(core: ServerContext, caller: Caller, digest: str, size_bytes: int) -> None:
    """Refuse an upload before its first byte is stored if it exceeds the project's quota, else reserve its size.

    Unfinished uploads of the project count as well. Uploads of jobs are always accepted, as in `stored`.

    Raises:
        QuotaError: If a user's project would exceed its storage quota.
        ForbiddenError: If the caller may not upload.
    """
    _may_upload(caller)
    if has_quota(caller):
        await core.read(partial(refuse_upload, core=core, project=caller.project, digest=digest, size_bytes=size_bytes))


async def upload_limit(core: ServerContext, caller: Caller) -> int | None:
    """Return the maximum size in bytes of an upload of unknown length; None without a limit."""
    return (
        await core.read(lambda connection: quotas.room_for(connection, caller.project)) if has_quota(caller) else None
    )


def refuse_upload(connection: Connection, *, core: ServerContext, project: str, digest: str, size_bytes: int) -> None:
    """Refuse to start or continue an upload over a project's quota, else reserve its size.

    Raises:
        QuotaError: If the project would exceed its storage quota.
    """
    if artifacts.known(connection, project, [digest]) or not quotas.limits_storage(connection, project):
        return

    def check(others: int) -> None:
        quotas.refuse_storing(connection, project, size_bytes, reserved_bytes=others, lock=False)

    core.blobs.announce(digest, size_bytes, scope_of(project), check)


async def stored(core: ServerContext, caller: Caller, digest: str, size_bytes: int, *, of_job: bool = False) -> None:
    """Record a file that the store has just verified; it is pinned for the uploader until it is published.

    Files of jobs are accepted regardless of the project's quota: finished work must not be lost.

    Raises:
        QuotaError: If a user's project would exceed its storage quota.
        OffsetConflict: If the file was collected meanwhile as an older, unused one: upload it again.
        ForbiddenError: If the caller may not upload.
    """
    _may_upload(caller)

    def operation(connection: Connection) -> None:
        # Files are only deleted in this thread, so the file cannot disappear between this check and the commit.
        if not core.blobs.has(digest):
            raise OffsetConflict(f"The file {digest[:12]}… must be uploaded again.", cursor=0)
        now = core.clock.wall()
        if has_quota(caller) and not of_job and not artifacts.known(connection, caller.project, [digest]):
            quotas.refuse_storing(connection, caller.project, size_bytes)
        capacity.add(connection, core.blobs, digest, size_bytes)
        artifacts.add_blob(connection, project=caller.project, digest=digest, size_bytes=size_bytes, at=now)
        artifacts.pin(connection, [digest], holder=_holder(caller), until=now + PIN_S)

    await core.write(operation)


async def publish(
    core: ServerContext, caller: Caller, body: ArtifactCreate, *, task_id: str | None = None
) -> ArtifactView:
    """Publish stored files as an artifact. Idempotent.

    An attempt publishes for its task, where a newer artifact replaces an older one with the same name.

    Raises:
        ArtifactError: If a file is not stored or has another size, a path is unsafe, or the digest is not that of the
            files.
        ForbiddenError: If the caller may not publish there.
        ConflictError: If the attempt has ended.
    """
    _may_upload(caller)
    if body.files:
        check_files(body.files)
    if manifest_digest(body.files) != body.digest:
        raise ArtifactError(f"The digest of the artifact {body.name!r} does not match its files.")
    now = core.clock.wall()

    def operation(connection: Connection) -> ArtifactRow:
        artifact = _publish(connection, caller=caller, body=body, task_id=task_id, now=now)
        if artifact.kind == checkpoint_retention.KIND and artifact.task_id is not None:
            checkpoint_retention.retire(connection, core.blobs, artifact.task_id, now)
        return artifact

    return artifact_view(await core.write(operation))


def _publish(
    connection: Connection, *, caller: Caller, body: ArtifactCreate, task_id: str | None, now: float
) -> ArtifactRow:
    owner, task_id = _owner_and_task(connection, caller, task_id)
    older = artifacts.named(connection, project=caller.project, name=body.name, task_id=task_id)
    same = next((row for row in older if row.digest == body.digest and row.kind == body.kind), None)
    if same is not None:
        return same
    if isinstance(caller, AttemptActor):
        refuse_ended(connection, caller)
    sizes = artifacts.sizes(connection, caller.project, [entry.digest for entry in body.files])
    for entry in body.files:
        if entry.digest not in sizes:
            raise ArtifactError(f"The file {entry.path} of {body.name!r} was not uploaded.", hint="Upload it first.")
        if entry.size_bytes != sizes[entry.digest]:
            raise ArtifactError(f"The file {entry.path} of {body.name!r} has {sizes[entry.digest]:,} bytes.")
    if task_id is not None:
        artifacts.delete_rows(connection, [row.id for row in older])
    id_ = new_id("art")
    row = _row(caller, body, id_, owner, task_id, now)
    artifacts.insert_one(connection, row, [(e.path, e.digest, e.size_bytes) for e in body.files])
    if isinstance(caller, Actor):
        # The artifact references them now. With the pins left, removing it would free their space only after `PIN_S`.
        artifacts.unpin_files(connection, [e.digest for e in body.files], [_holder(caller)])
    _append_event(connection, caller, row, now)
    return artifacts.by_ids(connection, [id_])[id_]


def _row(caller: Caller, body: ArtifactCreate, id_: str, owner: str, task_id: str | None, now: float) -> dict[str, Any]:
    return {
        "id": id_, "project": caller.project, "name": body.name, "kind": body.kind, "digest": body.digest,
        "size_bytes": sum(entry.size_bytes for entry in body.files), "file_count": len(body.files),
        "task_id": task_id, "attempt_id": caller.attempt_id if isinstance(caller, AttemptActor) else None,
        "owner": owner, "created_at": now, "metadata": orjson.dumps(body.metadata).decode(),
    }  # fmt: skip


def _append_event(connection: Connection, caller: Caller, row: dict[str, Any], now: float) -> None:
    task_id = row["task_id"]
    kind = (
        "checkpoint.uploaded"
        if row["kind"] == checkpoint_retention.KIND and task_id is not None
        else "artifact.published"
    )
    data = {name: row[name] for name in ("id", "name", "kind", "digest", "size_bytes")}
    if task_id is None:
        event = Event(kind, now, data=data, project=row["project"])
    else:
        worker_id = caller.worker_id if isinstance(caller, AttemptActor) else None
        event = events.of_task(tasks.by_ids(connection, [task_id])[task_id], kind, now, data, worker_id=worker_id)
    events.append(connection, [event])


def _owner_and_task(connection: Connection, caller: Caller, task_id: str | None) -> tuple[str, str | None]:
    if isinstance(caller, AttemptActor):
        if task_id not in {None, caller.task_id}:
            raise ForbiddenError(f"This token is for {caller.task_id} only.")
        task_id = caller.task_id
    if task_id is None:
        assert isinstance(caller, Actor)
        return caller.owner, None
    task = tasks.by_ids(connection, [task_id]).get(task_id)
    if task is None or task.project != caller.project:
        raise NotFoundError(f"Run {task_id} not found.")
    if isinstance(caller, Actor):
        may_change(caller, task.owner, task.id)
    return task.owner, task.id


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    origin: bool = False,
    **filters: str | None,
) -> Page[ArtifactView]:
    """Return artifacts, newest first.

    Args:
        origin: Whether each comes with its task, and what that read.
        filters: `task_id`, `kind`, `name`, `owner`; each takes several values separated by commas.
    """
    may_read(actor)
    limit, last = bounded_limit(limit), before_cursor(cursor)

    def operation(connection: Connection) -> Page[ArtifactView]:
        rows = artifacts.page(connection, project=actor.project, limit=limit + 1, before=last, filters=filters)
        page, next_cursor = split_page(rows, limit)
        known = artifact_origin.origins(connection, page) if origin else {}
        items = tuple(artifact_view(row, known.get(row.task_id or "")) for row in page)
        return Page[ArtifactView](items=items, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: ServerContext, caller: Caller, reference: str) -> ArtifactDetail:
    """Return an artifact by its id or a unique prefix of it, its digest, or its name (the newest with that name).

    Raises:
        NotFoundError: If there is none, or an attempt may not read it.
        ConflictError: If several ids have the prefix.
    """

    def operation(connection: Connection) -> ArtifactDetail:
        found = _find(connection, caller.project, reference, by_prefix=isinstance(caller, Actor))
        if isinstance(caller, AttemptActor):
            found = [row for row in found if _concerns(connection, caller, [row])]
        else:
            may_read(caller)
        if not found:
            raise NotFoundError(f"Artifact {reference} not found.", hint=_LIST_HINT)
        return artifact_detail(found[0], artifacts.files(connection, found[0].id))

    return await core.read(operation)


async def remove(core: ServerContext, actor: Actor, reference: str) -> None:
    """Remove an artifact; files that nothing else references are collected.

    Raises:
        ConflictError: If a task that has not ended reads it.
        ForbiddenError: If it belongs to another owner.
    """

    def operation(connection: Connection) -> None:
        found = _find(connection, actor.project, reference)
        if not found:
            raise NotFoundError(f"Artifact {reference} not found.", hint=_LIST_HINT)
        row = found[0]
        may_change(actor, row.owner, row.id)
        readers = tasks.in_use(connection, row.id)
        if readers:
            raise ConflictError(
                f"Artifact {row.name} is read by {readers[0]}.",
                hint=f"Wait for it, or cancel it with `tunefleet cancel {readers[0]}`.",
            )
        artifacts.delete_rows(connection, [row.id])

    await core.write(operation)


async def may_read_blob(core: ServerContext, caller: Caller, digest: str) -> bool:
    """Whether a caller may download a file: any of its project, for an attempt those of its inputs and results."""

    def operation(connection: Connection) -> bool:
        if digest not in artifacts.known(connection, caller.project, [digest]):
            return False
        if isinstance(caller, Actor):
            return caller.role != "worker"
        if artifacts.pinned_by(connection, digest, _holder(caller)):
            return True
        return _concerns(connection, caller, artifacts.holding_file(connection, project=caller.project, digest=digest))

    return await core.read(operation)


async def collect_garbage(core: ServerContext) -> Collected:
    """Delete files without references or pins, and abandoned uploads."""
    return await garbage_collection.collect(core)


def _find(connection: Connection, project: str, reference: str, *, by_prefix: bool = True) -> list[ArtifactRow]:
    for column in ("id", "digest", "name"):
        found = artifacts.find(connection, project=project, column=column, value=reference)
        if found:
            return found
    if not by_prefix or not reference.startswith("art-"):
        return []
    row = only_match("artifacts", reference, partial(artifacts.by_prefix, connection, reference, project))
    return [] if row is None else [row]


def _concerns(connection: Connection, attempt: AttemptActor, rows: list[ArtifactRow]) -> bool:
    if any(row.task_id == attempt.task_id for row in rows):
        return True
    return bool(rows) and tasks.reads_artifact(connection, attempt.task_id, [row.id for row in rows])


def _holder(caller: Caller) -> str:
    return caller.attempt_id if isinstance(caller, AttemptActor) else caller.key_id


def _may_upload(caller: Caller) -> None:
    if isinstance(caller, Actor):
        may_submit(caller)
