"""Bodies and views that the page asks for, of the HTTP API under `/api/v1`: sessions, lists, many at once, charts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tunefleet.schemas.api import ArtifactView, TaskView
from tunefleet.schemas.base import Body, Message


class SessionRequest(Body):
    """Log a browser in: by a key, or by the code of a login link.

    Args:
        key: An API key.
        code: What stands behind `#code=` in a login link; it works once.
    """

    key: str | None = Field(default=None, min_length=1, max_length=500)
    code: str | None = Field(default=None, min_length=1, max_length=500)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.key is None) == (self.code is None):
            raise ValueError("give a key or a code")
        return self


class TaskCounts(Message):
    """How many tasks there are of each status, kind, owner and worker."""

    total: int
    status: dict[str, int]
    kind: dict[str, int]
    owner: dict[str, int]
    worker_id: dict[str, int]


class TaskDemand(Message):
    """How many workers of one sort the tasks that wait would take, if each had its own."""

    workers: int


class ExampleView(Message):
    """A document to begin with: what it is called, what it does, the kinds of its tasks, and the YAML."""

    name: str
    description: str
    kinds: tuple[str, ...]
    document: str


class Overview(Message):
    """What is going on.

    Args:
        tasks: Status → how many.
        workers: Status → how many.
        running: What runs, newest first, each at a glance; 100 at most.
        queue: What goes next, 10 at most.
        failed: What failed last, 10 at most.
    """

    tasks: dict[str, int]
    workers: dict[str, int]
    running: tuple[TaskView, ...]
    queue: tuple[TaskView, ...]
    failed: tuple[TaskView, ...]


class EdgeView(Message):
    """What a task of a workflow takes from one before it.

    Args:
        source: The task that is waited for.
        target: The task that waits.
        artifacts: Of the source, those that the target reads; checkpoints are left out.
        values: References to the source's result that the target's spec has, as `result.items.0.output`.
    """

    source: str
    target: str
    artifacts: tuple[ArtifactView, ...] = ()
    values: tuple[str, ...] = ()


class ManyRequest(Body):
    """Body of `POST /tasks/bulk`.

    Args:
        action: What to do with each.
        task_ids: Which tasks.
    """

    action: Literal["cancel", "retry", "remove"]
    task_ids: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]


class OneOfMany(Message):
    """What became of one task; `made` is the task that a retry has made."""

    task_id: str
    ok: bool
    made: str | None = None
    code: str | None = None
    detail: str | None = None
    hint: str | None = None


class ManyReply(Message):
    """What became of each task, in the order of the request."""

    items: tuple[OneOfMany, ...]


class SeriesView(Message):
    """A series of a task: the names of its values, and how many points count."""

    series: str
    names: tuple[str, ...]
    points: int
    first_step: int
    last_step: int
