"""The server's routes as calls: one function per route, with its method, path and types."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from tunefleet.client.call import Call, Sink, model, nothing, path
from tunefleet.schemas.api import (
    ArtifactCreate,
    ArtifactDetail,
    ArtifactView,
    BlobQuery,
    BlobReply,
    CheckpointView,
    CloneRequest,
    CommandRequest,
    CommandView,
    EventView,
    FileEntry,
    KeyCreate,
    KeyCreated,
    KeyView,
    LoginCode,
    LogView,
    MetricsView,
    Page,
    PruneReply,
    PruneRequest,
    ResumeRequest,
    RetryRequest,
    Role,
    ServerInfo,
    StopRequest,
    SubmitRequest,
    TaskDetail,
    TaskEdit,
    TaskView,
    ValidateReply,
    WorkflowDetail,
    WorkflowView,
)
from tunefleet.schemas.enrollment import InvitationCreate, InvitationCreated, InvitationView, JoinReply, JoinRequest
from tunefleet.schemas.fleet import ElasticRequest, ElasticView, WhyView, WorkerView
from tunefleet.schemas.server_info import PeersView, ServerView, StorageView
from tunefleet.schemas.ui import ManyReply, ManyRequest
from tunefleet.schemas.worker_guide import ResultEnvelope, ResultFiles
from tunefleet.schemas.worker_link import Cursor, JournalBatch

# A server with an object store responds to an upload once the file is stored there: the lowest assumed rate.
PASSED_ON_BYTES_PER_S: Final = 4 << 20
ANSWER_S: Final = 60.0


def info() -> Call[ServerInfo]:
    """Return the server's version and the owner of the key."""
    return Call("GET", "/info", model(ServerInfo))


def schema() -> Call[dict[str, Any]]:
    """Return the JSON Schema of workflow files."""
    return Call("GET", "/schema", model(dict[str, Any]))


def validate(document: str, filename: str | None = None, *, dry_run: bool = False) -> Call[ValidateReply]:
    """Validate a workflow file on the server without storing it; `dry_run` adds a placement preview."""
    body = SubmitRequest(document=document, filename=filename)
    params = {"dry_run": "true" if dry_run else None}
    return Call("POST", "/workflows/validate", model(ValidateReply), params, body=body)


def create_workflow(request: SubmitRequest, idempotency_key: str) -> Call[WorkflowDetail]:
    """Submit a workflow file; a repeated call with the same key returns the first response."""
    headers = {"Idempotency-Key": idempotency_key}
    return Call("POST", "/workflows", model(WorkflowDetail), body=request, headers=headers)


def list_workflows(
    *,
    status: str | None = None,
    owner: str | None = None,
    name: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[WorkflowView]]:
    """Return a page of workflows, newest first."""
    params = {"status": status, "owner": owner, "name": name, "limit": limit, "cursor": cursor}
    return Call("GET", "/workflows", model(Page[WorkflowView]), params)


def get_workflow(workflow_id: str) -> Call[WorkflowDetail]:
    """Return a workflow and its workflow file; a unique id prefix is enough."""
    return Call("GET", path("workflows", workflow_id), model(WorkflowDetail))


def cancel_workflow(workflow_id: str) -> Call[WorkflowDetail]:
    """Cancel all tasks of a workflow that are not final."""
    return Call("POST", path("workflows", workflow_id, "cancel"), model(WorkflowDetail))


def retry_workflow(
    workflow_id: str, overrides: Mapping[str, Any] | None = None, *, again: bool = False
) -> Call[WorkflowDetail]:
    """Rerun the incomplete tasks of a final workflow in a new workflow that reuses the other results.

    Args:
        overrides: Fields of `spec` to change: dotted path → value.
        again: Also if an earlier retry is running or has completed.
    """
    body = RetryRequest(overrides=dict(overrides or {}), again=again)
    return Call("POST", path("workflows", workflow_id, "retry"), model(WorkflowDetail), body=body, repeatable=False)


def remove_workflow(workflow_id: str) -> Call[None]:
    """Delete a workflow and everything its tasks stored; all tasks must be final."""
    return Call("DELETE", path("workflows", workflow_id), nothing, repeatable=False)


def list_tasks(  # noqa: PLR0913 - the filters of one list
    *,
    status: str | None = None,
    kind: str | None = None,
    owner: str | None = None,
    workflow_id: str | None = None,
    worker_id: str | None = None,
    tag: str | None = None,
    sort: str | None = None,
    glance: bool = False,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[TaskView]]:
    """Return a page of tasks, newest first; with `glance`, includes their latest and best metrics.

    Args:
        sort: A field such as `duration`, or a metric such as `best.eval_loss`; `-` in front for descending order.
    """
    params = {
        "status": status,
        "kind": kind,
        "owner": owner,
        "workflow_id": workflow_id,
        "worker_id": worker_id,
        "tag": tag,
        "sort": sort,
        "glance": "true" if glance else None,
        "limit": limit,
        "cursor": cursor,
    }
    return Call("GET", "/tasks", model(Page[TaskView]), params)


def get_task(task_id: str) -> Call[TaskDetail]:
    """Return a task with its spec, attempts and result; a unique id prefix is enough."""
    return Call("GET", path("tasks", task_id), model(TaskDetail))


def why(task_id: str) -> Call[WhyView]:
    """Return why a task is pending."""
    return Call("GET", path("tasks", task_id, "why"), model(WhyView))


def cancel_task(task_id: str) -> Call[TaskDetail]:
    """Cancel a task; a running task ends after its current step and keeps its checkpoints."""
    return Call("POST", path("tasks", task_id, "cancel"), model(TaskDetail))


def pause_task(task_id: str) -> Call[TaskDetail]:
    """Pause a running task, which saves a checkpoint after its current step. Idempotent."""
    return Call("POST", path("tasks", task_id, "pause"), model(TaskDetail))


def resume_task(task_id: str, from_step: int | Literal["best"] | None = None) -> Call[TaskDetail]:
    """Resume a paused task, or resume a final task as a new one; returns the task that runs.

    `from_step` is the step of a checkpoint, `best`, or `None` for the latest.
    """
    body = ResumeRequest(from_step=from_step)
    return Call("POST", path("tasks", task_id, "resume"), model(TaskDetail), body=body, repeatable=False)


def stop_task(task_id: str, *, save: bool = True) -> Call[CommandView]:
    """Stop a training run early and mark it completed; with `save`, it saves a checkpoint first."""
    body = StopRequest(save=save)
    return Call("POST", path("tasks", task_id, "stop"), model(CommandView), body=body, repeatable=False)


def command_task(
    task_id: str, command: str, data: Mapping[str, Any] | None = None, *, command_id: str | None = None
) -> Call[CommandView]:
    """Send a command (`ControlCommand`) to a running task; pass your own `command_id` to make retries safe."""
    known_as = command_id or f"cmd-{uuid.uuid4().hex[:12]}"
    body = CommandRequest(command=command, data=dict(data or {}), command_id=known_as)
    return Call("POST", path("tasks", task_id, "commands"), model(CommandView), body=body)


def list_commands(task_id: str) -> Call[tuple[CommandView, ...]]:
    """Return the commands of a task, oldest first."""
    return Call("GET", path("tasks", task_id, "commands"), model(tuple[CommandView, ...]))


def get_command(task_id: str, command_id: str, *, wait_s: float = 0.0) -> Call[CommandView]:
    """Return a command and its outcome; waits up to `wait_s` seconds for the outcome."""
    where = path("tasks", task_id, "commands", command_id)
    return Call("GET", where, model(CommandView), {"wait_s": wait_s}, read_timeout_s=wait_s + 15.0)


def checkpoints(task_id: str) -> Call[tuple[CheckpointView, ...]]:
    """Return the complete checkpoints of a task, in step order."""
    return Call("GET", path("tasks", task_id, "checkpoints"), model(tuple[CheckpointView, ...]))


def retry_task(task_id: str) -> Call[TaskDetail]:
    """Submit a final task again, as a new task linked to the original."""
    return Call("POST", path("tasks", task_id, "retry"), model(TaskDetail), repeatable=False)


def clone_task(
    task_id: str, overrides: Mapping[str, Any] | None = None, inputs: Mapping[str, str] | None = None
) -> Call[TaskDetail]:
    """Submit a task again as a new task with changed spec fields and uploaded files for changed paths."""
    body = CloneRequest(overrides=dict(overrides or {}), inputs=dict(inputs or {}))
    return Call("POST", path("tasks", task_id, "clone"), model(TaskDetail), body=body, repeatable=False)


def edit_task(task_id: str, **changes: Any) -> Call[TaskDetail]:
    """Change the `name`, `tags` and `notes` of a task.

    Omitted fields stay unchanged; `name=None` restores the name in the workflow file, `notes=None` removes the notes.
    """
    return Call("PATCH", path("tasks", task_id), model(TaskDetail), body=TaskEdit(**changes))


def tag_tasks(task_ids: Sequence[str], tags: Iterable[str], *, remove: bool = False) -> Call[ManyReply]:
    """Add or remove tags on up to 1,000 tasks; returns the outcome for each task."""
    body = ManyRequest(action="untag" if remove else "tag", task_ids=tuple(task_ids), tags=tuple(tags))
    return Call("POST", "/tasks/bulk", model(ManyReply), body=body)


def remove_task(task_id: str) -> Call[None]:
    """Delete a final task and everything it stored."""
    return Call("DELETE", path("tasks", task_id), nothing, repeatable=False)


def metrics(
    task_id: str,
    *,
    series: str = "train",
    names: Iterable[str] | None = None,
    max_points: int | None = None,
    after_step: int | None = None,
) -> Call[MetricsView]:
    """Return the points of one series, downsampled to `max_points` if given."""
    params = {
        "series": series,
        "names": ",".join(names) if names is not None else None,
        "max_points": max_points,
        "after_step": after_step,
    }
    return Call("GET", path("tasks", task_id, "metrics"), model(MetricsView), params)


def log(
    task_id: str, *, offset: int | None = None, tail_bytes: int | None = None, limit_bytes: int | None = None
) -> Call[LogView]:
    """Return part of a task's log: from an offset, or the last `tail_bytes`."""
    params = {"offset": offset, "tail_bytes": tail_bytes, "limit_bytes": limit_bytes}
    return Call("GET", path("tasks", task_id, "log"), model(LogView), params)


def log_stream(task_id: str, offset: int = 0) -> Call[None]:
    """Open the stream of a task's log from an offset, until the task is final."""
    headers = {"Accept": "text/event-stream"}
    return Call("GET", path("tasks", task_id, "log", "stream"), nothing, {"offset": offset}, headers=headers)


def list_events(
    *,
    after: int = 0,
    limit: int = 100,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Iterable[str] | None = None,
) -> Call[tuple[EventView, ...]]:
    """Return the events that follow an event id, oldest first."""
    params = {**_event_filter(task_id, workflow_id, kinds), "after": after, "limit": limit}
    return Call("GET", "/events", model(tuple[EventView, ...]), params)


def event_stream(
    *,
    after: int | None = None,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Iterable[str] | None = None,
) -> Call[None]:
    """Open the event stream; `after` replays the events after that one."""
    headers = {"Accept": "text/event-stream"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    return Call("GET", "/events/stream", nothing, _event_filter(task_id, workflow_id, kinds), headers=headers)


def _event_filter(
    task_id: str | None, workflow_id: str | None, kinds: Iterable[str] | None
) -> dict[str, str | int | None]:
    return {
        "task_id": task_id,
        "workflow_id": workflow_id,
        "kinds": ",".join(kinds) if kinds is not None else None,
    }


def list_artifacts(
    *,
    task_id: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[ArtifactView]]:
    """Return a page of artifacts, newest first."""
    params = {"task_id": task_id, "kind": kind, "name": name, "limit": limit, "cursor": cursor}
    return Call("GET", "/artifacts", model(Page[ArtifactView]), params)


def get_artifact(artifact: str) -> Call[ArtifactDetail]:
    """Return an artifact and its files, by id, digest or name."""
    return Call("GET", path("artifacts", artifact), model(ArtifactDetail))


def remove_artifact(artifact: str) -> Call[None]:
    """Delete an artifact; the next garbage collection removes files that nothing else references."""
    return Call("DELETE", path("artifacts", artifact), nothing, repeatable=False)


def publish_artifact(body: ArtifactCreate, task_id: str | None = None) -> Call[ArtifactView]:
    """Publish stored files as an artifact; idempotent."""
    return Call("POST", "/artifacts", model(ArtifactView), {"task_id": task_id}, body=body)


def missing_blobs(blobs: Iterable[FileEntry]) -> Call[BlobReply]:
    """Return which of these files the server does not have, and the offset of each."""
    return Call("POST", "/blobs/missing", model(BlobReply), body=BlobQuery(blobs=tuple(blobs)))


def put_blob(entry: FileEntry, offset: int, size_bytes: int, content: Callable[[], Iterator[bytes]]) -> Call[None]:
    """Upload `size_bytes` of a file from an offset."""
    headers = {
        "Upload-Offset": str(offset),
        "Upload-Length": str(entry.size_bytes),
        "Content-Length": str(size_bytes),
        "Content-Type": "application/octet-stream",
    }
    # Not retried: after an interruption, first ask the server how much it has.
    return Call(
        "PUT",
        path("blobs", entry.digest),
        nothing,
        content=content,
        headers=headers,
        repeatable=False,
        read_timeout_s=ANSWER_S + entry.size_bytes / PASSED_ON_BYTES_PER_S,
    )


def get_blob(digest: str, offset: int, sink: Sink) -> Call[None]:
    """Download a file from an offset to its end."""
    headers = (
        {"Range": f"bytes={offset}-", "Accept-Encoding": "identity"} if offset else {"Accept-Encoding": "identity"}
    )
    return Call("GET", path("blobs", digest), nothing, headers=headers, sink=sink, repeatable=False)


def result_files(task_id: str) -> Call[ResultFiles]:
    """Return the files of a task, each with a signed link that works without a key."""
    return Call("GET", path("results", task_id, "files"), model(ResultFiles))


def get_result(task_id: str) -> Call[ResultEnvelope]:
    """Return the stored result of a task and its origin."""
    return Call("GET", path("results", task_id), model(ResultEnvelope))


def get_result_file(task_id: str, name: str, offset: int, digest: str, sink: Sink) -> Call[None]:
    """Download a task's file from an offset into `sink`, if it still has this digest."""
    headers = {"Range": f"bytes={offset}-", "If-Range": f'"{digest}"'} if offset else {}
    where = path("results", task_id, "files", *name.split("/"))
    return Call("GET", where, nothing, headers=headers, sink=sink, repeatable=False)


def put_journal(task_id: str, batch: JournalBatch) -> Call[Cursor]:
    """Deliver journal records of a launch; the server skips records that it already has."""
    return Call("POST", path("tasks", task_id, "journal"), model(Cursor), body=batch)


def put_log(task_id: str, offset: int, data: bytes) -> Call[Cursor]:
    """Deliver a part of a log."""
    headers = {"Content-Type": "application/octet-stream"}
    return Call(
        "PUT",
        path("tasks", task_id, "log"),
        model(Cursor),
        {"offset": offset},
        content=lambda: iter((data,)),
        headers=headers,
    )


def list_workers(*, limit: int = 100, cursor: str | None = None) -> Call[Page[WorkerView]]:
    """Return a page of workers."""
    return Call("GET", "/workers", model(Page[WorkerView]), {"limit": limit, "cursor": cursor})


def get_worker(worker_id: str) -> Call[WorkerView]:
    """Return a worker with its hardware and running tasks."""
    return Call("GET", path("workers", worker_id), model(WorkerView))


def tell_worker(
    worker_id: str, verb: str, data: Mapping[str, Any] | None = None, *, command_id: str | None = None
) -> Call[CommandView]:
    """Send `restart`, `update-config`, `collect-diagnostics` or `upgrade` to a worker; its jobs keep running."""
    body = CommandRequest(command=verb, data=dict(data or {}), command_id=command_id or f"cmd-{uuid.uuid4().hex[:12]}")
    return Call("POST", path("workers", worker_id, "commands"), model(CommandView), body=body)


def worker_command(worker_id: str, command_id: str, *, wait_s: float = 0.0) -> Call[CommandView]:
    """Return a worker command and its outcome; waits up to `wait_s` seconds for the outcome."""
    where = path("workers", worker_id, "commands", command_id)
    return Call("GET", where, model(CommandView), {"wait_s": wait_s}, read_timeout_s=wait_s + 15.0)


def cordon_worker(worker_id: str) -> Call[WorkerView]:
    """Cordon a worker: it gets no new tasks, but running tasks continue."""
    return Call("POST", path("workers", worker_id, "cordon"), model(WorkerView))


def uncordon_worker(worker_id: str) -> Call[WorkerView]:
    """Uncordon a worker: it gets tasks again, and an unfinished drain is cancelled."""
    return Call("POST", path("workers", worker_id, "uncordon"), model(WorkerView))


def drain_worker(worker_id: str) -> Call[WorkerView]:
    """Drain a worker: it finishes its tasks, leaves the fleet and stays cordoned until you uncordon it."""
    return Call("POST", path("workers", worker_id, "drain"), model(WorkerView))


def set_elastic(worker_id: str, *, enabled: bool) -> Call[ElasticView]:
    """Activate a worker or put it on standby, as elastic scaling would; scaling continues from that state."""
    return Call("POST", path("workers", worker_id, "elastic"), model(ElasticView), body=ElasticRequest(enabled=enabled))


def remove_worker(worker_id: str) -> Call[None]:
    """Delete an offline worker."""
    return Call("DELETE", path("workers", worker_id), nothing, repeatable=False)


def list_keys(*, limit: int = 100, cursor: str | None = None) -> Call[Page[KeyView]]:
    """Return a page of API keys, without their secrets."""
    return Call("GET", "/keys", model(Page[KeyView]), {"limit": limit, "cursor": cursor})


def create_key(
    name: str,
    role: Role = "member",
    *,
    owner: str | None = None,
    project: str | None = None,
    endpoint: str | None = None,
) -> Call[KeyCreated]:
    """Create an API key; only this response contains its secret.

    Args:
        owner: Owner of what it creates; default: its name.
        project: Default: the project of your key.
        endpoint: With the role `endpoint`: the only endpoint that it may call.
    """
    body = KeyCreate(name=name, role=role, owner=owner, project=project, endpoint=endpoint)
    return Call("POST", "/keys", model(KeyCreated), body=body, repeatable=False)


def revoke_key(key_id: str) -> Call[None]:
    """Revoke an API key, effective immediately."""
    return Call("DELETE", path("keys", key_id), nothing)


def login_code() -> Call[LoginCode]:
    """Create a single-use login link for a browser session; it expires after ten minutes."""
    return Call("POST", "/login-codes", model(LoginCode), repeatable=False)


def prune(older_than_s: float, *, dry_run: bool = False) -> Call[PruneReply]:
    """Delete workflows that ended more than `older_than_s` seconds ago, and unreferenced files."""
    body = PruneRequest(older_than_s=older_than_s, dry_run=dry_run)
    return Call("POST", "/prune", model(PruneReply), body=body)


def server() -> Call[ServerView]:
    """Return the server's versions, database and file storage."""
    return Call("GET", "/server", model(ServerView))


def storage() -> Call[StorageView]:
    """Return the disk usage of the server's data, by kind."""
    return Call("GET", "/storage", model(StorageView))


def servers() -> Call[PeersView]:
    """List the servers that share the database."""
    return Call("GET", "/servers", model(PeersView))


def invite(
    worker_id: str | None = None,
    *,
    tags: Sequence[str] | None = None,
    owner: str | None = None,
    expires_s: float = 3600.0,
) -> Call[InvitationCreated]:
    """Invite a machine to join as a worker; only this response contains the single-use token."""
    body = InvitationCreate(
        worker_id=worker_id, tags=None if tags is None else tuple(tags), owner=owner, expires_s=expires_s
    )
    return Call("POST", "/invitations", model(InvitationCreated), body=body, repeatable=False)


def list_invitations(*, limit: int = 100, cursor: str | None = None) -> Call[Page[InvitationView]]:
    """Return a page of invitations, newest first, without their tokens."""
    return Call("GET", "/invitations", model(Page[InvitationView]), {"limit": limit, "cursor": cursor})


def withdraw(invitation_id: str) -> Call[None]:
    """Withdraw an unused invitation."""
    return Call("DELETE", path("invitations", invitation_id), nothing)


def join(request: JoinRequest) -> Call[JoinReply]:
    """Exchange an invitation's token for a worker key; idempotent."""
    return Call("POST", "/join", model(JoinReply), body=request)
