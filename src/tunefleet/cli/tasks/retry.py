"""`tunefleet retry`: a final task again, or what is left of a workflow."""

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
        bool, typer.Option("--again", help="Of a workflow: also if an earlier retry runs or has completed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Submit a final task again, or what has not completed of a workflow.

    The new task starts from the beginning and is linked to the old one. Of a workflow, what has completed, or failed
    only to be delivered, is not run again: its results are used as they are. --set changes the workflow's document: a
    field of one stage is stages.NAME.spec.FIELD, of a node graph.nodes.NAME.spec.FIELD.
    """
    overrides = parse_sets(sets)
    single = next((id_ for id_ in tasks if not is_workflow(id_)), None)
    if single is not None and (overrides or again):
        hint = f"`tunefleet clone {single} --set FIELD=VALUE` runs a task again with a change."
        raise InputError("--set and --again go with workflows alone.", hint=hint)
    made: list[TaskView] = []
    remarks: list[str] = []
    with connect() as client:
        for id_ in tasks:
            if is_workflow(id_):
                flow = client.workflows.retry(id_, overrides, again=again)
                made += flow.tasks
                remarks += flow.warnings
            else:
                made.append(client.tasks.retry(id_))
    report_new(made, as_json=as_json)
    for remark in remarks:
        err().print(Text(remark, style="warn"))
