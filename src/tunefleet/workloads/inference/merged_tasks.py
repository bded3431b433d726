"""The tasks of one run: that of the job, and equal ones that go along."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tunefleet.errors import InputError, TunefleetError
from tunefleet.spec import InferenceTaskSpec
from tunefleet.workloads.common.job import Opened, checked
from tunefleet.workloads.inference.items import Item, read_items
from tunefleet.workloads.inference.questions import Question, ask

logger = logging.getLogger(__name__)

CHILDREN = "children"


@dataclass(slots=True)
class Task:
    """One of the tasks that a run computes."""

    task_id: str
    spec: InferenceTaskSpec
    inputs: Mapping[str, str]
    folder: Path
    items: list[Item] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    error: str | None = None


def read_tasks(own: Opened[InferenceTaskSpec]) -> list[Task]:
    """Return the tasks of a job, its own first.

    Raises:
        InputError: If one that goes along is no inference.
    """
    job, folder = own.job, own.folder.root
    first = Task(job.task_id, own.spec, job.inputs, folder)
    others = [
        Task(child.task_id, checked(child.spec, InferenceTaskSpec), child.inputs, folder / CHILDREN / child.task_id)
        for child in job.merge_children
    ]
    return [first, *others]


def read_all(tasks: list[Task], workspace: Path, adapters: list[str]) -> None:
    """Read the items of all tasks; one of those that go along fails alone."""
    default = adapters[0] if len(adapters) == 1 else None
    for number, task in enumerate(tasks):
        place = workspace if number == 0 else workspace / task.task_id
        try:
            task.items = read_items(task.spec.data, task.inputs, place, shard=task.spec.shard)
            task.questions = ask(task.items, task.spec.inference, adapters, default=default)
        except InputError as error:
            if number == 0:
                raise
            fail(task, error)


def fail(task: Task, error: TunefleetError) -> None:
    """Note why a task that goes along fails; the others go on."""
    logger.warning("Task %s fails: %s", task.task_id, error)
    task.error = str(error)
    task.questions = []
