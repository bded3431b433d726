"""`tunefleet retry`: retry an ended task, or the incomplete part of a workflow."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.console import Json, err
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Set, TasksOrWorkflows, connect, is_workflow, parse_sets
from tunefleet.cli.tasks.task_commands import report_new
from tunefleet.errors import InputError
from tunefleet.schemas.api import TaskView


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
        bool, typer.Option("--again", help="Workflows: retry even if an earlier retry is running or completed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Retry an ended task, or the incomplete part of a workflow.

    The new task starts from the beginning and is linked to the old one. Tasks of a workflow that completed, or failed
    only at delivery, are not run again: their results are reused. --set changes the workflow file: a field of a stage
    is stages.NAME.spec.FIELD, of a node graph.nodes.NAME.spec.FIELD.
    """
    overrides = parse_sets(sets)
    single = next((id_ for id_ in tasks if not is_workflow(id_)), None)
    if single is not None and (overrides or again):
        hint = f"Use `tunefleet clone {single} --set FIELD=VALUE` for a task."
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
