"""Artifacts and their files: what is there, what may be read, what is published, what can go.

A file is known once the store verified its digest. Whoever is told that a file is there holds a pin of it, so that it
is not collected before it is published.
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
from tunefleet.orchestrator.access.permissions import (
    Actor,
    AttemptActor,
    Who,
    has_quota,
    may_change,
    may_read,
    may_submit,
)
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.ids import MEANT_AT_MOST, new_id, several
from tunefleet.orchestrator.storage import capacity, garbage_collection, verification
from tunefleet.orchestrator.storage.garbage_collection import Collected
from tunefleet.orchestrator.tasks import checkpoints
from tunefleet.orchestrator.telemetry.ingest import refuse_ended
from tunefleet.orchestrator.views import artifact_detail, artifact_view, before, bounded, split
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
_WHERE: Final = "`tunefleet data ls` lists what was pushed, `tunefleet artifacts ls` what tasks made."


def scope_of(project: str) -> str:
    """Return the name under which a project's unfinished uploads are kept apart from those of others."""
    return "" if project == DEFAULT_PROJECT else project


async def missing(core: Core, who: Who, query: BlobQuery) -> BlobReply:
    """Say which files have to be uploaded; the others are kept for the asker.

    Raises:
        ForbiddenError: If the asker may not upload.
        QuotaError: If the missing ones are more than the project may keep.
    """
    _may_upload(who)
    digests = [entry.digest for entry in query.blobs]

    def operation(connection: Connection) -> set[str]:
        known = artifacts.known(connection, who.project, digests)
        if has_quota(who):
            lacking = {entry.digest: entry.size_bytes for entry in query.blobs if entry.digest not in known}
            quotas.refuse_storing(connection, who.project, sum(lacking.values()))
        artifacts.pin(connection, sorted(known), holder=_holder(who), until=core.clock.wall() + PIN_S)
        return known

    known = await core.write(operation)
    lost = await asyncio.to_thread(lambda: set(verification.damaged(core.blobs, sorted(known), core.verified)))
    lacking = sorted((set(digests) - known) | lost)
    return BlobReply(
        missing=tuple(
            BlobMissing(digest=digest, offset=core.blobs.partial_size(digest, scope_of(who.project)))
            for digest in lacking
        )
    )


async def reserve(core: Core, who: Who, digest: str, size_bytes: int) -> None:
    """Refuse an upload before its first byte is kept, if the project's quota has no room for all of it.

    What the project's other unfinished uploads have left counts as well. What a job brings is taken, as in `stored`.

    Raises:
        QuotaError: If a person's project would keep more than it may.
        ForbiddenError: If the uploader may not upload.
    """
    _may_upload(who)
    if has_quota(who):
        await core.read(partial(refuse_upload, core=core, project=who.project, digest=digest, size_bytes=size_bytes))


async def room(core: Core, who: Who) -> int | None:
    """Return how many bytes an upload of unknown length may have; null if nothing limits it."""
    return await core.read(lambda connection: quotas.room_for(connection, who.project)) if has_quota(who) else None


def refuse_upload(connection: Connection, *, core: Core, project: str, digest: str, size_bytes: int) -> None:
    """Refuse to begin or go on with an upload for which a project's quota has no room, else reserve its whole length.

    Arguments as in `reserve`.
    """
    if artifacts.known(connection, project, [digest]) or not quotas.limits_storage(connection, project):
        return

    def check(others: int) -> None:
        quotas.refuse_storing(connection, project, size_bytes, reserved_bytes=others, lock=False)

    core.blobs.announce(digest, size_bytes, scope_of(project), check)


async def stored(core: Core, who: Who, digest: str, size_bytes: int, *, of_job: bool = False) -> None:
    """Record a file that the store has just verified; it is kept for the uploader until it is published.

    What a job brings is taken whatever the project's quota: work that is done is not lost.

    Raises:
        QuotaError: If a person's project would keep more than it may.
        OffsetConflict: If the file is gone again (it was collected as an older, unused one): upload it anew.
        ForbiddenError: If the uploader may not upload.
    """
    _may_upload(who)

    def operation(connection: Connection) -> None:
        # Files are deleted in this thread only, so that the file cannot go between this look and the commit.
        if not core.blobs.has(digest):
            raise OffsetConflict(f"The file {digest[:12]}… has to be uploaded again.", cursor=0)
        now = core.clock.wall()
        if has_quota(who) and not of_job and not artifacts.known(connection, who.project, [digest]):
            quotas.refuse_storing(connection, who.project, size_bytes)
        capacity.add(connection, core.blobs, digest, size_bytes)
        artifacts.add_blob(connection, project=who.project, digest=digest, size_bytes=size_bytes, at=now)
        artifacts.pin(connection, [digest], holder=_holder(who), until=now + PIN_S)

    await core.write(operation)


async def publish(core: Core, who: Who, body: ArtifactCreate, *, task_id: str | None = None) -> ArtifactView:
    """Give files that are stored a name; publishing the same again changes nothing.

    An attempt publishes for its task, where a newer artifact takes the place of an older one of its name.

    Raises:
        ArtifactError: If a file is not stored or has another size, a path is unsafe, or the digest is not that of the
            files.
        ForbiddenError: If the publisher may not write there.
        ConflictError: If the attempt has ended.
    """
    _may_upload(who)
    if body.files:
        check_files(body.files)
    if manifest_digest(body.files) != body.digest:
        raise ArtifactError(f"The digest of the artifact {body.name!r} is not that of its files.")
    now = core.clock.wall()

    def operation(connection: Connection) -> ArtifactRow:
        made = _publish(connection, who=who, body=body, task_id=task_id, now=now)
        if made.kind == checkpoints.KIND and made.task_id is not None:
            checkpoints.retire(connection, core.blobs, made.task_id, now)
        return made

    return artifact_view(await core.write(operation))


def _publish(connection: Connection, *, who: Who, body: ArtifactCreate, task_id: str | None, now: float) -> ArtifactRow:
    owner, task_id = _owner_and_task(connection, who, task_id)
    older = artifacts.named(connection, project=who.project, name=body.name, task_id=task_id)
    same = next((row for row in older if row.digest == body.digest and row.kind == body.kind), None)
    if same is not None:
        return same
    if isinstance(who, AttemptActor):
        refuse_ended(connection, who)
    sizes = artifacts.sizes(connection, who.project, [entry.digest for entry in body.files])
    for entry in body.files:
        if entry.digest not in sizes:
            raise ArtifactError(f"The file {entry.path} of {body.name!r} was not uploaded.", hint="Upload it first.")
        if entry.size_bytes != sizes[entry.digest]:
            raise ArtifactError(f"The file {entry.path} of {body.name!r} has {sizes[entry.digest]:,} bytes.")
    if task_id is not None:
        artifacts.delete_rows(connection, [row.id for row in older])
    id_ = new_id("art")
    row = _row(who, body, id_, owner, task_id, now)
    artifacts.insert_one(connection, row, [(e.path, e.digest, e.size_bytes) for e in body.files])
    if isinstance(who, Actor):
        # The artifact keeps them from now on; removed again, it gives back their room today and not tomorrow.
        artifacts.unpin_files(connection, [e.digest for e in body.files], [_holder(who)])
    _tell(connection, who, row, now)
    return artifacts.by_ids(connection, [id_])[id_]


def _row(who: Who, body: ArtifactCreate, id_: str, owner: str, task_id: str | None, now: float) -> dict[str, Any]:
    return {
        "id": id_, "project": who.project, "name": body.name, "kind": body.kind, "digest": body.digest,
        "size_bytes": sum(entry.size_bytes for entry in body.files), "file_count": len(body.files),
        "task_id": task_id, "attempt_id": who.attempt_id if isinstance(who, AttemptActor) else None,
        "owner": owner, "created_at": now, "metadata": orjson.dumps(body.metadata).decode(),
    }  # fmt: skip


def _tell(connection: Connection, who: Who, row: dict[str, Any], now: float) -> None:
    task_id = row["task_id"]
    kind = "checkpoint.uploaded" if row["kind"] == checkpoints.KIND and task_id is not None else "artifact.published"
    data = {name: row[name] for name in ("id", "name", "kind", "digest", "size_bytes")}
    if task_id is None:
        told = Event(kind, now, data=data, project=row["project"])
    else:
        worker_id = who.worker_id if isinstance(who, AttemptActor) else None
        told = events.of_task(tasks.by_ids(connection, [task_id])[task_id], kind, now, data, worker_id=worker_id)
    events.append(connection, [told])


def _owner_and_task(connection: Connection, who: Who, task_id: str | None) -> tuple[str, str | None]:
    if isinstance(who, AttemptActor):
        if task_id not in {None, who.task_id}:
            raise ForbiddenError(f"This token is for {who.task_id} only.")
        task_id = who.task_id
    if task_id is None:
        assert isinstance(who, Actor)
        return who.owner, None
    task = tasks.by_ids(connection, [task_id]).get(task_id)
    if task is None or task.project != who.project:
        raise NotFoundError(f"There is no task {task_id}.")
    if isinstance(who, Actor):
        may_change(who, task.owner, task.id)
    return task.owner, task.id


async def list_(
    core: Core,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    task_id: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    owner: str | None = None,
) -> Page[ArtifactView]:
    """Return artifacts, newest first; a filter takes several values separated by commas."""
    may_read(actor)
    limit, last = bounded(limit), before(cursor)
    filters = {"task_id": task_id, "kind": kind, "name": name, "owner": owner}
    rows = await core.read(
        lambda connection: artifacts.page(
            connection, project=actor.project, limit=limit + 1, before=last, filters=filters
        )
    )
    page, next_cursor = split(rows, limit)
    return Page[ArtifactView](items=tuple(artifact_view(row) for row in page), next_cursor=next_cursor)


async def get(core: Core, who: Who, reference: str) -> ArtifactDetail:
    """Return an artifact by its id or a unique beginning of it, its digest, or its name: the newest of that name.

    Raises:
        NotFoundError: If there is none, or an attempt has nothing to do with it.
        ConflictError: If several ids begin so.
    """

    def operation(connection: Connection) -> ArtifactDetail:
        found = _find(connection, who.project, reference, begun=isinstance(who, Actor))
        if isinstance(who, AttemptActor):
            found = [row for row in found if _concerns(connection, who, [row])]
        else:
            may_read(who)
        if not found:
            raise NotFoundError(f"There is no artifact {reference}.", hint=_WHERE)
        return artifact_detail(found[0], artifacts.files(connection, found[0].id))

    return await core.read(operation)


async def remove(core: Core, actor: Actor, reference: str) -> None:
    """Remove an artifact; its files go when nothing else refers to them.

    Raises:
        ConflictError: If a task that has not ended reads it.
        ForbiddenError: If it belongs to somebody else.
    """

    def operation(connection: Connection) -> None:
        found = _find(connection, actor.project, reference)
        if not found:
            raise NotFoundError(f"There is no artifact {reference}.", hint=_WHERE)
        row = found[0]
        may_change(actor, row.owner, row.id)
        readers = tasks.in_use(connection, row.id)
        if readers:
            raise ConflictError(
                f"The artifact {row.name} is read by {readers[0]}.",
                hint=f"Wait for it, or `tunefleet cancel {readers[0]}`.",
            )
        artifacts.delete_rows(connection, [row.id])

    await core.write(operation)


async def may_read_blob(core: Core, who: Who, digest: str) -> bool:
    """Say whether somebody may fetch a file: all of the project's, for an attempt those of its inputs and results."""

    def operation(connection: Connection) -> bool:
        if digest not in artifacts.known(connection, who.project, [digest]):
            return False
        if isinstance(who, Actor):
            return who.role != "worker"
        if artifacts.pinned_by(connection, digest, _holder(who)):
            return True
        return _concerns(connection, who, artifacts.holding_file(connection, project=who.project, digest=digest))

    return await core.read(operation)


async def collect_garbage(core: Core) -> Collected:
    """Delete files that nothing refers to and nobody holds, and what given-up uploads left."""
    return await garbage_collection.collect(core)


def _find(connection: Connection, project: str, reference: str, *, begun: bool = True) -> list[ArtifactRow]:
    for column in ("id", "digest", "name"):
        found = artifacts.find(connection, project=project, column=column, value=reference)
        if found:
            return found
    if not begun or not reference.startswith("art-"):
        return []
    rows = artifacts.by_prefix(connection, reference, project=project, limit=MEANT_AT_MOST + 1)
    if len(rows) > 1:
        raise several("artifacts", reference, [(row.id, row.name) for row in rows])
    return rows


def _concerns(connection: Connection, attempt: AttemptActor, rows: list[ArtifactRow]) -> bool:
    if any(row.task_id == attempt.task_id for row in rows):
        return True
    return bool(rows) and tasks.reads_artifact(connection, attempt.task_id, [row.id for row in rows])


def _holder(who: Who) -> str:
    return who.attempt_id if isinstance(who, AttemptActor) else who.key_id


def _may_upload(who: Who) -> None:
    if isinstance(who, Actor):
        may_submit(who)
