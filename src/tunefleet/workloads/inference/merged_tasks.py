"""The tasks of one run: the job's own, and the ones merged with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tunefleet.errors import InputError, TunefleetError
from tunefleet.spec import InferenceTaskSpec
from tunefleet.workloads.common.job import OpenedJob, checked
from tunefleet.workloads.inference.items import Item, read_items
from tunefleet.workloads.inference.questions import Question, ask

logger = logging.getLogger(__name__)

CHILDREN = "children"


@dataclass(slots=True)
class Task:
    """A task that a run computes."""

    task_id: str
    spec: InferenceTaskSpec
    inputs: Mapping[str, str]
    folder: Path
    items: list[Item] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    error: str | None = None


def read_tasks(own: OpenedJob[InferenceTaskSpec]) -> list[Task]:
    """Return the tasks of a job, its own first.

    Raises:
        InputError: If a merged task is not an inference task.
    """
    job, folder = own.job, own.folder.root
    first = Task(job.task_id, own.spec, job.inputs, folder)
    others = [
        Task(child.task_id, checked(child.spec, InferenceTaskSpec), child.inputs, folder / CHILDREN / child.task_id)
        for child in job.merge_children
    ]
    return [first, *others]


def read_all(tasks: list[Task], workspace: Path, adapters: list[str]) -> None:
    """Read the items of all tasks; a failure of a merged task does not affect the others."""
    default = adapters[0] if len(adapters) == 1 else None
    for number, task in enumerate(tasks):
        place = workspace if number == 0 else workspace / task.task_id
        try:
            task.items = read_items(task.spec.data, task.inputs, place, shard=task.spec.shard)
            task.questions = ask(task.items, task.spec.inference, adapters, default=default)
        except InputError as error:
            # The job's own task decides the result of the job.
            if number == 0:
                raise
            fail(task, error)


def fail(task: Task, error: TunefleetError) -> None:
    """Record the failure of a merged task; the others continue."""
    logger.warning("Task %s fails: %s", task.task_id, error)
    task.error = str(error)
    task.questions = []
