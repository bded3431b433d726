"""`tunefleet submit`, `follow` and `validate`: a workflow file is checked, submitted, and followed to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, next_block, out, print_json, say, show_warnings
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Set, TaskOrWorkflow, connect, is_workflow, parse_sets
from tunefleet.cli.tasks import task_view, workflow_view
from tunefleet.cli.tasks.task_commands import run_time
from tunefleet.cli.tasks.why import show_dry_run
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client, Run
from tunefleet.client.submission import local_files, read_document, read_workflow
from tunefleet.errors import ConflictError, Fault, SpecError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import FaultView, TaskDetail, TaskView, ValidateReply, WorkflowDetail, WorkflowView
from tunefleet.spec.documents.submit_checks import remarks
from tunefleet.spec.file_decoder import decode_file

_STANDARD_INPUT = "-"
# A worker that has just been started registers within this time.
_PATIENCE_S: Final = 5.0
# Prefix of the server's pending reason.
_STUCK: Final = "unschedulable"


@examples(
    "tunefleet submit sft.yaml --follow",
    "tunefleet submit sft.yaml --set training.learning_rate=1e-4 --set lora.r=32",
    "tunefleet submit sft.yaml --dry-run",
    "tunefleet submit sft.yaml --wait --json | jq .result.result.losses",
)
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Workflow file; - reads standard input.")],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the run live until it ends.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait for the run to end, without showing progress.")
    ] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Maximum time to wait with --wait, in seconds.")
    ] = None,
    sets: Set = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if no current worker can run a task, instead of waiting for one."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show where each task would run, without submitting.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Submit only once for all requests with this key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Submit a workflow file and upload the local files it names.

    The file is validated before anything is sent. With --follow or --wait, the exit code reflects the result of the
    run, and Ctrl-C leaves it running.
    """
    # The line break marks it as text; without one it would be read as a path.
    source = decode_file(sys.stdin.buffer.read(), "standard input") + "\n" if file == _STANDARD_INPUT else Path(file)
    if dry_run:
        _dry_run(source, file, parse_sets(sets), as_json=as_json)
    with connect() as client:
        with transfer_bar() as on_progress:
            run = client.submit(
                source,
                overrides=parse_sets(sets),
                idempotency_key=idempotency_key,
                strict=strict,
                on_progress=on_progress,
            )
        show_warnings(run.workflow.warnings)
        if not as_json:
            _announce(run, listed=not (follow and out().is_terminal))
        if not follow and not wait:
            if as_json:
                print_json(run.workflow)
            return
        if len(run.workflow.tasks) > 1:
            shown = follow and not as_json
            _end_of_all(client, run.workflow.id, follow=shown, timeout_s=timeout_s, strict=strict, as_json=as_json)
        ended = _watch(client, run, follow=follow and not as_json, timeout_s=timeout_s, strict=strict)
        _report(client, ended, as_json=as_json)


def _dry_run(source: Path | str, file: str, overrides: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    # Validated here first: errors then have lines of the local file.
    text, path = read_document(source)
    text, _ = read_workflow(text, overrides, path.parent if path else Path(), filename=file)
    with connect() as client:
        reply = client.workflows.validate(text, file, dry_run=True)
    if not reply.ok:  # valid here: the server has another version
        raise SpecError([Fault(**each.model_dump()) for each in reply.faults], filename=file)
    raise typer.Exit(show_dry_run(reply, as_json=as_json))


def _end_of_all(
    client: Client, workflow_id: str, *, follow: bool, timeout_s: float | None, as_json: bool, strict: bool = False
) -> NoReturn:
    """Wait for a workflow of several tasks, and exit with the code of its result."""
    if follow:
        say()
        ended = workflow_view.follow(client, workflow_id)
    else:
        try:
            look = UnschedulableNotice(strict=strict).workflow
            ended = client.workflows.wait(workflow_id, timeout_s=timeout_s, on_update=look)
        except KeyboardInterrupt:
            err().print(f"\nThe workflow keeps running. Follow it with `tunefleet follow {workflow_id}`.")
            ended = None
    if ended is not None and as_json:
        print_json(ended)
    elif ended is not None and not (follow and out().is_terminal):
        if follow:
            say()
        say(workflow_view.screen(ended))
    raise typer.Exit(workflow_view.exit_code(ended))


def _announce(run: Run, *, listed: bool) -> None:
    """Print what was submitted."""
    if len(run.workflow.tasks) > 1:
        _announce_stages(run.workflow, listed=listed)
        return
    task = run.task
    say(Text.assemble("Submitted ", (task.name, "head"), " as ", (task.id, "id"), "."))
    if task.why and not any(task.why in warning for warning in run.workflow.warnings):
        say(task.why[:1].upper() + task.why[1:], style="dim")
    say(f"Follow: tunefleet follow {task.id}", style="dim")


def _announce_stages(workflow: WorkflowDetail, *, listed: bool) -> None:
    count = formatting.plural(len(workflow.tasks), "task")
    say(Text.assemble("Submitted ", (workflow.name, "head"), " as ", (workflow.id, "id"), f" with {count}."))
    if listed:
        say(workflow_view.stage_table(workflow.tasks))
        say(f"Follow: tunefleet follow {workflow.id}", style="dim")


def _watch(client: Client, run: Run, *, follow: bool, timeout_s: float | None, strict: bool) -> TaskDetail | None:
    if follow:
        say()
        return task_view.follow_or_leave(client, run.task_id)
    try:
        return client.tasks.wait(run.task_id, timeout_s=timeout_s, on_update=UnschedulableNotice(strict=strict).task)
    except KeyboardInterrupt:
        err().print(f"\nIt keeps running. Follow it with `tunefleet follow {run.task_id}`.")
        return None


def _report(client: Client, task: TaskDetail | None, *, as_json: bool) -> None:
    if task is not None and as_json:
        print_json(task)
    elif task is not None:
        _summary(client, task)
    raise typer.Exit(task_view.exit_code_for(task))


def _summary(client: Client, task: TaskDetail) -> None:
    say()
    details = ("Details", f"tunefleet show {task.id}")
    if task.status == TaskStatus.FAILED:
        task_view.failure_screen(out(), client, task)
        say(next_block([details]))
        return
    say(Text.assemble((task.name, "head"), f" {task.status} after {run_time(task) or formatting.duration(0.0)}."))
    say(next_block([details, ("Artifacts", f"tunefleet artifacts ls {task.id}")]))


@examples("tunefleet follow task-3f9a", "tunefleet follow wf-81c2")
def follow(task: TaskOrWorkflow, *, as_json: Json = False) -> None:
    """Follow a run or a workflow live until it ends.

    Ctrl-C leaves it running. With --json, only the final state is printed. The exit code reflects the result.
    """
    with connect() as client:
        if is_workflow(task):
            _end_of_all(client, task, follow=not as_json, timeout_s=None, as_json=as_json)
        found = client.tasks.get(task)
        ended = client.tasks.wait(found.id) if as_json else task_view.follow_or_leave(client, found.id)
        _report(client, ended, as_json=as_json)


class UnschedulableNotice:
    """Watches awaited tasks, and reports once per task that no worker can run it."""

    def __init__(self, *, strict: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._strict = strict
        self._clock = clock
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    def task(self, task: TaskView) -> None:
        """Check a task.

        Raises:
            ConflictError: If no worker can run it, with `strict`.
        """
        self._check([task])

    def workflow(self, workflow: WorkflowView) -> None:
        """Check the tasks of a workflow; raises like `task`."""
        self._check(workflow.tasks)

    def _check(self, tasks: Sequence[TaskView]) -> None:
        now = self._clock()
        for task in tasks:
            if not (task.why or "").startswith(_STUCK):
                self._since.pop(task.id, None)
            elif now - self._since.setdefault(task.id, now) >= _PATIENCE_S and task.id not in self._reported:
                self._reported.add(task.id)
                self._report(task)

    def _report(self, task: TaskView) -> None:
        what = f"{task.name} ({task.id}) is {task.why}"
        if self._strict:
            raise ConflictError(what, hint=f"It stays queued. Cancel it with `tunefleet cancel {task.id}`.")
        err().print(Text(what, style="warn"))
        err().print(
            f"It starts when a worker is eligible. See `tunefleet why {task.id}`; to fail instead, use --strict.",
            style="dim",
        )


@examples("tunefleet validate sft.yaml", "tunefleet validate sft.yaml --set lora.r=32")
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Workflow file.")],
    *,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Validate a workflow file and list every error with its line.

    Also checks the first 1,000 rows of local data files. Needs no server.
    """
    text, path = read_document(Path(file))
    folder = path.parent if path else Path()
    try:
        _, workflow = read_workflow(text, parse_sets(sets), folder, filename=file)
    except SpecError as error:
        if not as_json:
            raise
        faults = tuple(FaultView(**{name: getattr(f, name) for name in FaultView.model_fields}) for f in error.faults)
        print_json(ValidateReply(ok=False, faults=faults))
        raise typer.Exit(ExitCode.INVALID) from None
    files, warnings = local_files(workflow, folder), remarks((task, task.spec) for task in workflow.tasks)
    if as_json:
        names = tuple(task.name for task in workflow.tasks)
        print_json(ValidateReply(ok=True, tasks=names, warnings=tuple(warnings)))
        return
    show_warnings(warnings)
    say(f"Valid: {formatting.plural(len(workflow.tasks), 'task')}.", style="good")
    if files:
        say(f"Uploads: {', '.join(dict.fromkeys(map(str, files)))}", style="dim")
