"""`tunefleet ls`, `cancel`, `retry`, `clone`, `edit`, `rm`: tasks as a list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, err, out, print_json, say, status_text, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import (
    Set,
    TaskIds,
    TasksOrWorkflows,
    Yes,
    complete_task,
    complete_worker,
    confirm,
    connect,
    is_workflow,
    one_task,
    parse_sets,
)
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.errors import InputError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import TaskDetail, TaskView, WorkflowDetail, WorkflowView

# From this width on, `ls` has a column for the workflow.
_WIDE = 140
# Below this width it shows the columns that matter most.
_MEDIUM = 100
_SHORT_ID = len("task-") + 6
_MORE = "There are more; use --limit or --all."
_FLOW_STATUSES = ("running", "completed", "failed", "cancelled")


@examples(
    "tunefleet ls",
    "tunefleet ls --status running",
    "tunefleet ls --workflows",
    "tunefleet ls --all --json | jq '.[].id'",
)
def ls(
    *,
    status: Annotated[TaskStatus | None, typer.Option("--status", "-s", help="Filter by status.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Filter by kind, such as lora_sft.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Filter by owner.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Filter by workflow.")] = None,
    worker: Annotated[
        str | None, typer.Option("--worker", help="Filter by worker.", autocompletion=complete_worker)
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Filter by tag.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of entries.")] = 20,
    everything: Annotated[bool, typer.Option("--all", "-a", help="List all, without a limit.")] = False,
    workflows: Annotated[bool, typer.Option("--workflows", "-w", help="List workflows instead.")] = False,
    as_json: Json = False,
) -> None:
    """List runs or workflows, newest first.

    DURATION is the run time of all attempts, excluding pauses and time in the queue; before the first attempt, it
    is the time in the queue. A narrow terminal shows short ids.
    """
    narrow = out().is_terminal and out().width < _MEDIUM
    with connect() as client:
        if workflows:
            if any(given is not None for given in (kind, workflow, worker, tag)):
                raise InputError("--workflows supports only --status, --owner, --limit and --all.")
            _workflows(client, status, owner, None if everything else limit, as_json=as_json)
            return
        found = client.tasks.iterate(
            status=status and status.value,
            kind=kind,
            owner=owner,
            workflow_id=workflow,
            worker_id=worker,
            tag=tag,
            glance=narrow and not as_json,
            # One more than shown tells whether there are more.
            page_size=200 if everything else min(limit + 1, 200),
        )
        tasks = list(found if everything else islice(found, limit + 1))
    more = not everything and len(tasks) > limit
    tasks = tasks if everything else tasks[:limit]
    if as_json:
        print_json(tasks)
        return
    if not tasks:
        filtered = any(given is not None for given in (status, kind, owner, workflow, worker, tag))
        say("No run matches." if filtered else "No runs yet. Submit one with `tunefleet submit FILE`.")
        return
    if narrow:
        say(_narrow(tasks))
        if more:
            say(_MORE, style="dim")
        return
    wide_terminal = not out().is_terminal or out().width >= _WIDE
    columns = (
        "run",
        *(["workflow"] if wide_terminal else []),
        "name",
        "kind",
        "status",
        "progress",
        "duration",
        "note",
    )
    listing = table(*columns, right=("duration",), wide=("name", "note"))
    for task in tasks:
        listing.add_row(*_row(task, wide_terminal=wide_terminal))
    say(listing)
    if more:
        say(_MORE, style="dim")


def _workflows(
    client: Client, status: TaskStatus | None, owner: str | None, limit: int | None, *, as_json: bool
) -> None:
    if status is not None and status not in _FLOW_STATUSES:
        raise InputError(f"No workflow is {status.value}.", hint=f"A workflow is {', '.join(_FLOW_STATUSES)}.")
    size = 200 if limit is None else min(limit + 1, 200)
    found = client.workflows.iterate(status=status and status.value, owner=owner, page_size=size)
    flows = list(found if limit is None else islice(found, limit + 1))
    if as_json:
        print_json(flows[:limit])
        return
    if not flows:
        filtered = status is not None or owner is not None
        say("No workflow matches." if filtered else "No workflows yet. Submit one with `tunefleet submit FILE`.")
        return
    listing = table("workflow", "name", "status", "age", "tasks", right=("age",), wide=("name", "tasks"))
    for flow in flows[:limit]:
        listing.add_row(
            Text(flow.id, style="id"),
            cut(flow.name),
            status_text(flow.status),
            formatting.age(flow.created_at),
            cut(_counts(flow)),
        )
    say(listing)
    if limit is not None and len(flows) > limit:
        say(_MORE, style="dim")


def _counts(flow: WorkflowView) -> str:
    """Return the number of tasks per status; for a single task its id."""
    tasks = [task for task in flow.tasks if task.shard_of is None]
    if len(tasks) == 1:
        return tasks[0].id
    statuses = [task.status for task in tasks]
    return ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(statuses))


def _row(task: TaskView, *, wide_terminal: bool) -> tuple[Text | str, ...]:
    return (
        Text(task.id, style="id"),
        *([Text(task.workflow_id, style="id")] if wide_terminal else []),
        cut(task.name),
        task.kind,
        status_text(task.status),
        progress_text(task),
        _time_text(task),
        # For a task that waits for a retry, the time of the retry says more than the last error.
        cut(task.why, "dim")
        if task.why
        else cut(task.error or "", "bad" if task.status == TaskStatus.FAILED else "dim"),
    )


def _narrow(tasks: Sequence[TaskView]) -> Table:
    columns = ("name", "run", "status", "progress", "loss", "age")
    listing = table(*columns, right=("loss", "age"), wide=("name", "progress"))
    for task in tasks:
        loss = task.glance.loss[-1][1] if task.glance and task.glance.loss else None
        failed = task.status == TaskStatus.FAILED
        listing.add_row(
            cut(task.name),
            Text(task.id[:_SHORT_ID], style="id"),
            status_text(task.status),
            progress_text(task) or cut(task.why or task.error or "", "bad" if failed else "dim"),
            "" if loss is None else formatting.number(loss),
            formatting.age(task.created_at),
        )
    return listing


def _time_text(task: TaskView) -> str:
    """Return how long a task has run or waited; empty for one that ended without a run."""
    waited = "" if TaskStatus(task.status).final else formatting.duration(_since(task.created_at))
    return run_time(task) or waited


def progress_text(task: TaskView) -> str:
    """Return the progress of a running task, such as `120/400`."""
    if task.progress is None or TaskStatus(task.status).final:
        return ""
    if not task.progress.max_steps:
        return task.progress.phase
    return f"{task.progress.step}/{task.progress.max_steps}"


def run_time(task: TaskView) -> str:
    """Return the run time in all attempts, without pauses and queue; empty if the task never ran."""
    if task.status == TaskStatus.RUNNING and task.started_at is not None:
        return formatting.duration(task.ran_s + _since(task.started_at))
    if task.ran_s or task.started_at is None:
        return formatting.duration(task.ran_s) if task.ran_s else ""
    # A sharded task has no attempt of its own.
    return formatting.duration(
        _since(task.started_at) - (_since(task.finished_at) if task.finished_at is not None else 0.0)
    )


def _since(at: datetime) -> float:
    return (datetime.now(UTC) - at).total_seconds()


@examples("tunefleet cancel task-3f9a", "tunefleet cancel task-3f9a --wait", "tunefleet cancel wf-81c2")
def cancel(
    tasks: TasksOrWorkflows,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the runs have ended.")] = False,
    as_json: Json = False,
) -> None:
    """Cancel runs and their dependents; checkpoints are kept.

    A run that has started stops at the end of the current step; after 30 seconds, its process is killed. Cancelling
    a workflow cancels all its tasks.
    """
    done: list[TaskDetail | WorkflowDetail]
    with connect() as client:
        done = [client.workflows.cancel(id_) if is_workflow(id_) else client.tasks.cancel(id_) for id_ in tasks]
        if wait:
            done = [
                client.workflows.wait(each.id) if is_workflow(each.id) else client.tasks.wait(each.id) for each in done
            ]
    if as_json:
        print_json(done)
        return
    for each in done:
        if isinstance(each, WorkflowDetail):
            cancelling = f"Cancelling {each.id}; runs that have started are stopped."
            say(cancelling if each.status == "running" else f"{each.id} is {each.status}.")
        else:
            ended = TaskStatus(each.status).final
            say(f"{each.id} is {each.status}." if ended else f"Cancelling {each.id}; it stops at the end of its step.")


@examples(
    "tunefleet clone task-3f9a --set training.learning_rate=1e-4",
    "tunefleet clone task-3f9a --set lora.r=32 --set training.seed=1",
)
def clone(
    task: Annotated[
        str, typer.Argument(metavar="RUN", help="Run id or a unique prefix.", autocompletion=complete_task)
    ],
    *,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Submit a copy of a run with changed fields.

    If a changed field names a local file, it is uploaded; its path is relative to the current folder.
    """
    overrides = parse_sets(sets)
    with connect() as client, transfer_bar() as on_progress:
        done = [client.tasks.clone(one_task(client, task), overrides, on_progress=on_progress)]
    report_new(done, as_json=as_json)


def report_new(done: Sequence[TaskView], *, as_json: bool) -> None:
    """Print which tasks were submitted, and their sources."""
    if as_json:
        print_json(done)
        return
    for task in done:
        source = f", from {task.parent_task_id}" if task.parent_task_id else ""
        say(f"Submitted {task.id} ({task.name}){source}.")
    several = len(done) > 1 and len({task.workflow_id for task in done}) == 1
    say(f"Follow: tunefleet follow {done[0].workflow_id if several else done[-1].id}", style="dim")


@examples(
    "tunefleet edit task-3f9a --name baseline",
    "tunefleet edit task-3f9a task-77b1 --tag baseline --untag draft",
)
def edit(
    tasks: TaskIds,
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="New name; an empty value restores the original name.")
    ] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag; may be repeated.")] = None,
    removed: Annotated[list[str] | None, typer.Option("--untag", help="Remove a tag; may be repeated.")] = None,
    notes: Annotated[str | None, typer.Option("--notes", help="New notes; an empty value removes them.")] = None,
    as_json: Json = False,
) -> None:
    """Rename a run, or change its tags and notes."""
    if name is not None and len(tasks) > 1:
        raise InputError("--name applies to one run.", hint="Use one command for each run.")
    fields = {key: value or None for key, value in (("name", name), ("notes", notes)) if value is not None}
    if not (fields or tags or removed):
        raise InputError("Nothing to change.", hint="Pass --name, --tag, --untag or --notes.")
    with connect() as client:
        ids = [one_task(client, task) for task in tasks]
        for given, remove in ((tags, False), (removed, True)):
            if given:
                refused = next(
                    (item for item in client.tasks.tag(ids, given, remove=remove).items if not item.ok), None
                )
                if refused is not None:
                    raise InputError(refused.detail or "The tags were not changed.", hint=refused.hint)
        done = [client.tasks.edit(task_id, **fields) if fields else client.tasks.get(task_id) for task_id in ids]
    if as_json:
        print_json(done)
        return
    for task in done:
        say(f"Changed {task.id} ({task.name}).")


@examples("tunefleet rm task-3f9a", "tunefleet rm --yes $(tunefleet ls --status failed --json | jq -r '.[].id')")
def rm(tasks: TaskIds, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove ended runs and their metrics, logs and artifacts.

    Files that are still referenced elsewhere are kept.
    """
    with connect() as client:
        found = [client.tasks.get(one_task(client, task)) for task in tasks]
        names = ", ".join(f"{task.id} ({task.name})" for task in found)
        confirm(f"Remove {names} with metrics, logs and artifacts?", yes=yes)
        for task in found:
            client.tasks.remove(task.id)
    if as_json:
        print_json({"removed": [task.id for task in found]})
    else:
        say(f"Removed {formatting.plural(len(found), 'run')}.")


@examples(
    "tunefleet retry task-3f9a",
    "tunefleet retry wf-81c2",
    "tunefleet retry wf-81c2 --set stages.train.spec.training.learning_rate=1e-4",
)
def retry(
    tasks: TasksOrWorkflows,
    *,
    sets: Set = None,
    again: Annotated[
        bool, typer.Option("--again", help="Retry a workflow even if an earlier retry is running or completed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Retry an ended run, or the incomplete part of a workflow.

    The new run starts from the beginning and is linked to the old one. In a workflow, tasks that completed or
    failed only at delivery are not run again; their results are reused. --set changes the workflow file: use
    stages.NAME.spec.FIELD for a stage and graph.nodes.NAME.spec.FIELD for a node.
    """
    overrides = parse_sets(sets)
    single = next((id_ for id_ in tasks if not is_workflow(id_)), None)
    if single is not None and (overrides or again):
        hint = f"Use `tunefleet clone {single} --set FIELD=VALUE` for a run."
        raise InputError("--set and --again apply to workflows only.", hint=hint)
    made: list[TaskView] = []
    warnings: list[str] = []
    with connect() as client:
        for id_ in tasks:
            if is_workflow(id_):
                # The server decides which tasks of the workflow are incomplete.
                flow = client.workflows.retry(id_, overrides, again=again)
                made += flow.tasks
                warnings += flow.warnings
            else:
                made.append(client.tasks.retry(id_))
    report_new(made, as_json=as_json)
    for warning in warnings:
        err().print(Text(warning, style="warn"))
