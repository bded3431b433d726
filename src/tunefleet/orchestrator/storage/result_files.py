"""Results of tasks for the worker guide's routes: views of stored envelopes and artifacts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import orjson

from tunefleet.artifacts import manifest_digest
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts, dependencies, tasks, workflows
from tunefleet.db.rows import ArtifactRow, TaskRow
from tunefleet.errors import ConflictError, ForbiddenError, NotFoundError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.api_keys import refuse_ended
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, Caller, has_quota, may_change, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import artifacts as artifact_service
from tunefleet.orchestrator.storage import signed_urls
from tunefleet.orchestrator.storage.signed_urls import Signature, Signer
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.api import ArtifactCreate, FileEntry
from tunefleet.schemas.worker_guide import (
    ALWAYS_REQUIRED,
    FILE_KIND,
    MANIFEST_NAME,
    RESULT_NAMES,
    SINGLE_FILE,
    ManifestEntry,
    ResultEnvelope,
    ResultFile,
    ResultFiles,
    ResultStored,
    TaskManifest,
)

# Task statuses in which a result may be posted.
_TAKES: Final = frozenset({"dispatched", "running", "paused"})


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of a task.

    Args:
        body: Its content, if it is generated from the database.
    """

    name: str
    digest: str
    size_bytes: int
    kind: str
    at: float
    body: bytes | None = None


def signer(core: ServerContext, base: str) -> Signer:
    """Return a signer for a caller that reached the server at `base`."""
    expires = int(core.clock.wall() + core.settings.links_last_s)
    return Signer(core.secret, (core.settings.public_base_url or base).rstrip("/"), expires)


async def envelope(core: ServerContext, caller: Caller, task_id: str, sign: Signer) -> dict[str, Any]:
    """Return the stored envelope of a task with fresh links to its files."""

    def operation(connection: Connection) -> dict[str, Any]:
        task = _visible(connection, caller, task_id)
        stored = tasks.document(connection, task).result
        if stored is None:
            raise NotFoundError(f"Run {task_id} has no result; it is {task.status}.")
        made: dict[str, Any] = orjson.loads(stored)
        digests = {file.name: file.digest for file in _files_of(connection, task, _rows(connection, task))}
        made["result"] = signed_urls.renewed(
            made.get("result"),
            task_id,
            lambda name: sign.link(task_id, name, digests[name]) if name in digests else None,
        )
        return made

    return await core.read(operation)


async def post(core: ServerContext, caller: Caller, body: ResultEnvelope) -> ResultStored:
    """Store a result before its attempt has ended; a result in the attempt's final report replaces it.

    Raises:
        ConflictError: If the task is not running, and the result differs from the stored one.
        QuotaError: If the project would exceed its storage quota.
    """

    def operation(connection: Connection) -> None:
        task = _changeable(connection, caller, body.task_id)
        stored = tasks.document(connection, task).result
        before = None if stored is None else orjson.loads(stored)
        if before is not None and before.get("result") == body.result:
            return
        if task.status not in _TAKES:
            raise ConflictError(f"Run {task.id} is {task.status}; its result cannot be changed.")
        at = body.received_at or to_datetime(core.clock.wall())
        worker_id = caller.worker_id if isinstance(caller, AttemptActor) else body.worker_id or task.worker_id
        made = body.model_copy(update={"worker_id": worker_id, "received_at": at}).model_dump_json()
        if has_quota(caller):
            grown = len(made) - len(stored or "")
            quotas.refuse_storing(connection, task.project, max(0, grown))
            workflows.grow(connection, task.workflow_seq, task.project, grown)
        tasks.set_outcomes(connection, [(task.seq, made, None)])

    await core.write(operation)
    return ResultStored(path=signed_urls.path_of(body.task_id))


async def may_store(core: ServerContext, caller: Caller, task_id: str) -> None:
    """Raise if the caller may not upload files for a task; called before a file is read.

    Raises:
        ForbiddenError: If the task belongs to another user.
        ConflictError: If the caller's attempt has ended.
    """
    await core.read(lambda connection: _changeable(connection, caller, task_id))


async def store(
    core: ServerContext, caller: Caller, task_id: str, entry: FileEntry, sign: Signer, *, of_job: bool = False
) -> ResultStored:
    """Publish a file that was just stored as a file of a task; replaces a file of that name."""
    await artifact_service.stored(core, caller, entry.digest, entry.size_bytes, of_job=of_job)
    body = ArtifactCreate(
        name=entry.path, kind=FILE_KIND, files=(entry,), digest=manifest_digest([entry]), metadata={SINGLE_FILE: True}
    )
    await artifact_service.publish(core, caller, body, task_id=task_id)
    return ResultStored(
        path=signed_urls.path_of(task_id, entry.path),
        name=entry.path,
        size_bytes=entry.size_bytes,
        sha256=entry.digest,
        url=sign.link(task_id, entry.path, entry.digest),
    )


async def files(core: ServerContext, caller: Caller, task_id: str, sign: Signer) -> ResultFiles:
    """List the files of a task, each with a link."""

    def operation(connection: Connection) -> list[TaskFile]:
        return _all_files(connection, _visible(connection, caller, task_id), core.clock.wall())

    return ResultFiles(
        task_id=task_id,
        files=tuple(
            ResultFile(
                name=file.name,
                size_bytes=file.size_bytes,
                sha256=file.digest,
                kind=file.kind,
                updated_at=to_datetime(file.at),
                url=sign.link(task_id, file.name, file.digest),
            )
            for file in await core.read(operation)
        ),
    )


async def find(
    core: ServerContext, caller: Caller | None, task_id: str, name: str, signature: Signature | None
) -> TaskFile:
    """Find a file of a task, for a caller with read access or a valid link.

    Raises:
        ForbiddenError: If the link is not valid and the caller has no read access.
    """

    def operation(connection: Connection) -> TaskFile:
        task, known = _reached(connection, caller, task_id, signature)
        found = {file.name: file for file in _all_files(connection, task, core.clock.wall())}
        file = found.get(name) or found.get(name.removeprefix("artifacts/"))
        if file is None:
            raise NotFoundError(
                f"Run {task_id} has no file {name!r}.",
                hint=f"GET {signed_urls.path_of(task_id)}/files lists them.",
            )
        if signature is not None and not known:
            signed_urls.verify(core.secret, task_id, file.name, file.digest, signature, core.clock.wall())
        return file

    return await core.read(operation)


def _all_files(connection: Connection, task: TaskRow, now: float) -> list[TaskFile]:
    """Return the published files, the result under both of its names, and the manifest."""
    rows = _rows(connection, task)
    published = _files_of(connection, task, rows)
    stored = tasks.document(connection, task).result
    made: dict[str, TaskFile] = {file.name: file for file in published}
    if stored is not None:
        body = stored.encode()
        result = TaskFile("", hashlib.sha256(body).hexdigest(), len(body), "result", task.finished_at or now, body)
        made |= {name: replace(result, name=name) for name in RESULT_NAMES}
    if MANIFEST_NAME not in made:
        spec = orjson.loads(tasks.document(connection, task).as_run)
        at = max([row.created_at for row in rows], default=task.finished_at or task.created_at)
        digests = {file.name: file.digest for file in published}
        listed = manifest(task.id, spec, rows, digests, has_result=stored is not None, at=at)
        body = listed.model_dump_json(indent=1).encode()
        digest = hashlib.sha256(body).hexdigest()
        made[MANIFEST_NAME] = TaskFile(MANIFEST_NAME, digest, len(body), "manifest", at, body)
    return [made[name] for name in sorted(made)]


def _rows(connection: Connection, task: TaskRow) -> list[ArtifactRow]:
    return artifacts.find(connection, project=task.project, column="task_id", value=task.id)


def _files_of(connection: Connection, task: TaskRow, rows: Sequence[ArtifactRow]) -> list[TaskFile]:
    found: dict[str, TaskFile] = {}
    theirs = artifacts.files_of_task(connection, task.id)
    for row in rows:
        single = bool(orjson.loads(row.metadata).get(SINGLE_FILE))
        for path, digest, size_bytes in theirs.get(row.id, ()):
            name = row.name if single else f"{row.name}/{path}"
            # Newest artifact first: an older one of the same name is hidden.
            found.setdefault(name, TaskFile(name, digest, size_bytes, row.kind, row.created_at))
    return list(found.values())


def _task(connection: Connection, task_id: str) -> TaskRow:
    task = tasks.by_ids(connection, [task_id]).get(task_id)
    if task is None:
        raise NotFoundError(f"Run {task_id} not found.")
    return task


def _reached(
    connection: Connection, caller: Caller | None, task_id: str, signature: Signature | None
) -> tuple[TaskRow, bool]:
    """Return a task, and whether the caller may read it without a link."""
    if caller is None:
        return _task(connection, task_id), False
    try:
        return _visible(connection, caller, task_id), True
    except (ForbiddenError, NotFoundError):
        # A valid link works for any caller, also for one that is logged in to another project.
        if signature is None:
            raise
        return _task(connection, task_id), False


def _visible(connection: Connection, caller: Caller, task_id: str) -> TaskRow:
    """Return a task whose results the caller may read: any of the project, or for an attempt those it depends on."""
    task = _task(connection, task_id)
    if task.project != caller.project:
        raise NotFoundError(f"Run {task_id} not found.")
    if isinstance(caller, Actor):
        may_read(caller)
    elif not concerns(connection, caller, [task_id]):
        raise ForbiddenError(f"This token is valid for {caller.task_id} and its inputs only.")
    return task


def concerns(connection: Connection, attempt: AttemptActor, task_ids: Sequence[str]) -> bool:
    """Whether an attempt may read results of one of these tasks: its own, an upstream one, or one in its spec."""
    if attempt.task_id in task_ids:
        return True
    mine = tasks.by_ids(connection, [attempt.task_id]).get(attempt.task_id)
    if mine is None or not task_ids:
        return False
    before = {upstream_id for upstream_id, _ in dependencies.names(connection, [mine.seq]).get(mine.seq, [])}
    if before & set(task_ids):
        return True
    document = tasks.document(connection, mine)
    spec_text = getattr(document, "resolved", None) or document.spec
    return any(f'"{task_id}"' in spec_text or f"/{task_id}/" in spec_text for task_id in task_ids)


def _changeable(connection: Connection, caller: Caller, task_id: str) -> TaskRow:
    if isinstance(caller, AttemptActor):
        if caller.task_id != task_id:
            raise ForbiddenError(f"This token is valid for {caller.task_id} only.")
        refuse_ended(connection, caller)
    task = _task(connection, task_id)
    if task.project != caller.project:
        raise NotFoundError(f"Run {task_id} not found.")
    if isinstance(caller, Actor):
        may_change(caller, task.owner, task.id)
    return task


def manifest(
    task_id: str,
    spec: Mapping[str, Any],
    rows: Sequence[ArtifactRow],
    digests: Mapping[str, str],
    *,
    has_result: bool,
    at: float,
) -> TaskManifest:
    """Return the manifest of a task."""
    named = [str(name).rstrip("/") for name in (spec.get("output") or {}).get("artifacts") or ()]
    required = dict.fromkeys([*ALWAYS_REQUIRED, *named])
    entries: dict[str, ManifestEntry] = {}
    for row in rows:
        entries.setdefault(row.name, _entry(row, digests, required=row.name in required))
    for name in required:
        # The server itself writes the log, so it always exists.
        present = name == "logs" or (name in RESULT_NAMES and has_result) or (name == "artifacts" and bool(rows))
        entries.setdefault(
            name,
            ManifestEntry(
                name=name, path=name, type=_type(name), required=True, status="present" if present else "missing",
                updated_at=to_datetime(at) if present else None,
                file_count=len(rows) if name == "artifacts" and present else None,
            ),
        )  # fmt: skip
    made = tuple(entries[name] for name in sorted(entries))
    return TaskManifest(task_id=task_id, generated_at=to_datetime(at), entries=made)


def _entry(row: ArtifactRow, digests: Mapping[str, str], *, required: bool) -> ManifestEntry:
    single = bool(orjson.loads(row.metadata).get(SINGLE_FILE))
    return ManifestEntry(
        name=row.name,
        path=row.name,
        type="artifact" if single else "directory",
        required=required,
        status="present",
        updated_at=to_datetime(row.created_at),
        size=row.size_bytes,
        sha256=digests.get(row.name) if single else None,
        file_count=None if single else row.file_count,
    )


def _type(name: str) -> Literal["result", "logs", "artifact", "directory"]:
    if name in RESULT_NAMES:
        return "result"
    if name == "logs":
        return "logs"
    return "directory" if name == "artifacts" or "." not in name else "artifact"
