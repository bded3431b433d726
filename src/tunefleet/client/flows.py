"""Operations of several calls: waiting, paging, following logs and events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from tunefleet.client import transfer
from tunefleet.client.call import Call, Emit, Flow, NextLine, OpenLines, Pause, ServerEvent, SseReader, Stream, ask
from tunefleet.client.routes import sweep_routes, workflow_routes
from tunefleet.errors import ConflictError, NotFoundError, UnreachableError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import (
    ArtifactView,
    CommandView,
    EventView,
    MetricPoint,
    Page,
    TaskDetail,
    TaskView,
    WorkflowDetail,
    WorkflowView,
)
from tunefleet.schemas.sweep import SweepDetail

T = TypeVar("T")
_POLL_S: Final = 0.5
_LOOK_S: Final = 0.2
_HOLD_S: Final = 20.0
"""Long poll timeout for a command's outcome."""


def wait_for_task(
    task_id: str,
    *,
    timeout_s: float | None = None,
    on_update: Callable[[TaskDetail], None] | None = None,
) -> Flow[TaskDetail]:
    """Wait until a task is final, even if the server restarts in between.

    Args:
        timeout_s: Seconds to wait; `None` waits forever.
        on_update: Called with the result of each poll.

    Raises:
        TimeoutError: If it is not final in time; the task continues.
    """
    task = yield from _wait(
        workflow_routes.get_task(task_id), timeout_s, lambda task: TaskStatus(task.status).final, on_update
    )
    if not TaskStatus(task.status).final:
        raise TimeoutError(f"{task.id} is still {task.status} after {timeout_s} s; it continues.")
    return task


def wait_for_workflow(
    workflow_id: str,
    *,
    timeout_s: float | None = None,
    on_update: Callable[[WorkflowDetail], None] | None = None,
) -> Flow[WorkflowDetail]:
    """Wait until every task of a workflow is final, even if the server restarts in between.

    Args:
        timeout_s: Seconds to wait; `None` waits forever.
        on_update: Called with the result of each poll.

    Raises:
        TimeoutError: If one is not final in time; the workflow continues.
    """
    workflow = yield from _wait(
        workflow_routes.get_workflow(workflow_id), timeout_s, lambda workflow: workflow.status != "running", on_update
    )
    if workflow.status == "running":
        raise TimeoutError(f"{workflow.id} is still running after {timeout_s} s; it continues.")
    return workflow


def wait_for_sweep(
    sweep_id: str,
    *,
    timeout_s: float | None = None,
    on_update: Callable[[SweepDetail], None] | None = None,
) -> Flow[SweepDetail]:
    """Wait until a sweep has ended; survives a restart of the server.

    Args:
        timeout_s: Seconds to wait; `None` waits forever.
        on_update: Called with the result of each poll.

    Raises:
        TimeoutError: If it has not ended in time; the sweep continues.
    """
    sweep = yield from _wait(sweep_routes.get_sweep(sweep_id), timeout_s, lambda sweep: sweep.status.final, on_update)
    if not sweep.status.final:
        raise TimeoutError(f"{sweep.id} is still {sweep.status} after {timeout_s} s; it continues.")
    return sweep


def _wait(
    call: Call[T], timeout_s: float | None, over: Callable[[T], bool], on_update: Callable[[T], None] | None
) -> Flow[T]:
    """Repeat a call with growing pauses until its result is final or the time is over; returns the last result."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = 0.05
    while True:
        found = yield from _look(call, deadline)
        if found is None:
            continue
        if on_update:
            on_update(found)
        if over(found) or (deadline is not None and time.monotonic() > deadline):
            return found
        yield Pause(pause)
        pause = min(pause * 1.5, _POLL_S)


def _look(call: Call[T], deadline: float | None) -> Flow[T | None]:
    """Make a call; returns `None`, after a pause, while the server is unreachable and there is time to retry."""
    try:
        return (yield from ask(call))
    except UnreachableError:
        if deadline is not None and time.monotonic() > deadline:
            raise
        yield Pause(_POLL_S)
        return None


def wait_for_worker_command(worker_id: str, command_id: str, *, timeout_s: float | None = None) -> Flow[CommandView]:
    """Wait for the outcome of a worker command, even if the server restarts in between."""
    return _wait_for_command(
        lambda wait_s: workflow_routes.worker_command(worker_id, command_id, wait_s=wait_s), timeout_s
    )


def wait_for_command(
    task_id: str,
    command_id: str,
    *,
    timeout_s: float | None = None,
    on_update: Callable[[CommandView], None] | None = None,
) -> Flow[CommandView]:
    """Wait for the outcome of a command, even if the server restarts in between.

    Args:
        timeout_s: Seconds to wait; `None` waits forever.
        on_update: Called with the result of each poll.

    Raises:
        TimeoutError: If it is not settled in time; the command stays pending.
    """
    return _wait_for_command(
        lambda wait_s: workflow_routes.get_command(task_id, command_id, wait_s=wait_s), timeout_s, on_update
    )


def _wait_for_command(
    look: Callable[[float], Call[CommandView]],
    timeout_s: float | None,
    on_update: Callable[[CommandView], None] | None = None,
) -> Flow[CommandView]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = _HOLD_S if deadline is None else min(_HOLD_S, max(0.0, deadline - time.monotonic()))
        command = yield from _look(look(left_s), deadline)
        if command is None:
            continue
        if on_update:
            on_update(command)
        if command.settled:
            return command
        if deadline is not None and time.monotonic() >= deadline:
            target = command.task_id or command.worker_id
            raise TimeoutError(f"Command {command.command} for {target} is still {command.state}.")


def pause_and_wait(task_id: str, *, timeout_s: float | None = None) -> Flow[TaskDetail]:
    """Pause a task and wait until it is paused and its process has exited.

    Args:
        timeout_s: Seconds to wait; `None` waits forever.

    Raises:
        ConflictError: If it is not running, ends before it is paused, or the pause fails and training continues.
        TimeoutError: If it is not paused in time; the pause stays pending.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    task = yield from ask(workflow_routes.pause_task(task_id))
    while task.desired == "pause" and task.status == TaskStatus.RUNNING:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{task.id} is not paused after {timeout_s} s; the pause is pending.")
        yield Pause(_LOOK_S)
        try:
            task = yield from ask(workflow_routes.get_task(task.id))
        except UnreachableError:
            continue
    if task.status == TaskStatus.PAUSED:
        return task
    if TaskStatus(task.status).final:
        raise ConflictError(f"Run {task.id} became {task.status} before it was paused.")
    commands = yield from ask(workflow_routes.list_commands(task.id))
    failed = [each.message for each in commands if each.command == "pause" and each.state == "failed"]
    why = f": {failed[-1]}" if failed else "."
    raise ConflictError(f"Run {task.id} could not be paused{why}", hint="The training run continues.")


def all_pages(first: Callable[[str | None], Call[Page[T]]]) -> Stream[T]:
    """Yield the items of all pages; `first` creates the call for a cursor."""
    cursor: str | None = None
    while True:
        page = yield from _within(ask(first(cursor)))
        for item in page.items:
            yield Emit(item)
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def _within(flow: Flow[T]) -> Any:
    """Run a flow inside a stream; only the types differ."""
    return (yield from flow)


def follow_metrics(task_id: str, *, series: str = "train", poll_s: float = _POLL_S) -> Stream[MetricPoint]:
    """Yield the points of a series, then new points as they arrive, until the task is final."""
    after: int | None = None
    while True:
        task = yield from _within(ask(workflow_routes.get_task(task_id)))
        view = yield from _within(ask(workflow_routes.metrics(task_id, series=series, after_step=after)))
        for point in view.points:
            after = point.step
            yield Emit(point)
        if TaskStatus(task.status).final:
            return
        yield Pause(poll_s)


def follow_log(task_id: str, *, offset: int = 0) -> Stream[str]:
    """Yield a task's log from an offset, then new text until the task is final, even across server restarts."""
    while True:
        handle = None
        try:
            handle = yield OpenLines(workflow_routes.log_stream(task_id, offset))
            reader = SseReader()
            while (line := (yield NextLine(handle))) is not None:
                event = reader.feed(line)
                if event is None:
                    continue
                if event.event == "eos":
                    return
                if event.event == "log":
                    offset = int(event.id)
                    yield Emit(_log_text(event))
        except UnreachableError:
            if handle is None:
                raise
        yield Pause(_POLL_S)


def _log_text(event: ServerEvent) -> str:
    text: str = json.loads(event.data)["text"]
    return text


def follow_events(
    *,
    after: int | None = None,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Iterable[str] | None = None,
) -> Stream[EventView]:
    """Yield events indefinitely; resumes after the last event when it reconnects.

    Args:
        after: Replay the events after this one first; `None` emits only new events.
        task_id: Only events of this task.
        workflow_id: Only events of this workflow.
        kinds: Only events of these kinds.
    """
    wanted = tuple(kinds) if kinds is not None else None
    while True:
        handle = None
        try:
            call = workflow_routes.event_stream(after=after, task_id=task_id, workflow_id=workflow_id, kinds=wanted)
            handle = yield OpenLines(call)
            reader = SseReader()
            while (line := (yield NextLine(handle))) is not None:
                event = reader.feed(line)
                if event is not None and event.id:
                    after = int(event.id)
                    yield Emit(EventView.model_validate_json(event.data))
        except UnreachableError:
            if handle is None:
                raise
        yield Pause(_POLL_S)


def iterate_workflows(
    *, status: str | None = None, owner: str | None = None, name: str | None = None, page_size: int = 200
) -> Stream[WorkflowView]:
    """Yield all workflows, newest first, fetching them page by page."""
    return all_pages(
        lambda cursor: workflow_routes.list_workflows(
            status=status, owner=owner, name=name, limit=page_size, cursor=cursor
        )
    )


def iterate_tasks(  # noqa: PLR0913 - the filters of one list
    *,
    status: str | None = None,
    kind: str | None = None,
    owner: str | None = None,
    workflow_id: str | None = None,
    worker_id: str | None = None,
    tag: str | None = None,
    sort: str | None = None,
    glance: bool = False,
    page_size: int = 200,
) -> Stream[TaskView]:
    """Yield all tasks, newest first, fetching them page by page; see `list` for the arguments."""
    return all_pages(
        lambda cursor: workflow_routes.list_tasks(
            status=status,
            kind=kind,
            owner=owner,
            workflow_id=workflow_id,
            worker_id=worker_id,
            tag=tag,
            sort=sort,
            glance=glance,
            limit=page_size,
            cursor=cursor,
        )
    )


def iterate_artifacts(
    *, task_id: str | None = None, kind: str | None = None, name: str | None = None, page_size: int = 200
) -> Stream[ArtifactView]:
    """Yield all artifacts, newest first, fetching them page by page."""
    return all_pages(
        lambda cursor: workflow_routes.list_artifacts(
            task_id=task_id, kind=kind, name=name, limit=page_size, cursor=cursor
        )
    )


def task_artifacts(task_id: str) -> Flow[tuple[ArtifactView, ...]]:
    """Return the artifacts of a task."""
    found: list[ArtifactView] = []
    cursor: str | None = None
    while True:
        page = yield from ask(workflow_routes.list_artifacts(task_id=task_id, limit=200, cursor=cursor))
        found.extend(page.items)
        if page.next_cursor is None:
            return tuple(found)
        cursor = page.next_cursor


def fetch_output(
    task_id: str,
    name: str,
    dest: Path | str,
    *,
    overwrite: bool = True,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[Path]:
    """Download an artifact of a task.

    Args:
        name: Name or kind of the artifact, such as `adapter`; the latest one with that name.
        dest: Target folder.
        overwrite: Replace existing files that differ.
        on_progress: Called with the progress.

    Raises:
        NotFoundError: If the task has no such artifact; the hint lists its artifacts.
        ConflictError: If a file exists, differs, and `overwrite` is false.
    """
    present = yield from task_artifacts(task_id)
    chosen = next((a for a in present if name in {a.name, a.id, a.digest}), None)
    chosen = chosen or next((a for a in present if a.kind == name), None)
    if chosen is None:
        names = ", ".join(sorted({artifact.name for artifact in present})) or "none"
        what = f"{task_id} has no artifact {name!r}." if name else f"{task_id} is a run: name one of its artifacts."
        raise NotFoundError(what, hint=f"Available artifacts: {names}.")
    return (yield from transfer.fetch(chosen.id, dest, overwrite=overwrite, on_progress=on_progress))


def clone(
    task_id: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[TaskDetail]:
    """Submit a task again as a new task with changed fields, and upload the local files they refer to.

    Args:
        task_id: Id of the task, or a unique prefix.
        overrides: Dotted path below `spec` → value; a local path is relative to the current folder.
        on_progress: Called with the progress of uploads.

    Raises:
        SpecError: If the changed spec is invalid.
        InputError: If a file that a changed field names does not exist.
    """
    # Imported on first use: they load the models of all task types.
    from tunefleet.client.submission import local_file
    from tunefleet.spec import deep_set, local_paths

    changes = {path.removeprefix("spec."): value for path, value in (overrides or {}).items()}
    inputs: dict[str, str] = {}
    if changes:
        task = yield from ask(workflow_routes.get_task(task_id))
        spec = json.loads(json.dumps(task.resolved or task.spec))
        for path, value in changes.items():
            deep_set(spec, path, value)
        named = [each for each in local_paths(spec) if any(f"{each.pointer}.".startswith(f"{p}.") for p in changes)]
        found = [(each, file) for each in named if (file := local_file(each, Path(), base="the current folder"))]
        for each, file in found:
            pushed = yield from transfer.push(file, kind=each.role, on_progress=on_progress)
            inputs[each.pointer] = pushed.digest
    return (yield from ask(workflow_routes.clone_task(task_id, overrides, inputs)))
