"""Bodies and views of the HTTP API for the web UI: sessions, lists, bulk actions, charts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tunefleet.schemas.api import ArtifactView, Tag, TaskView
from tunefleet.schemas.base import Body, Message


class SessionRequest(Body):
    """Log in a browser, with a key or the code of a login link.

    Args:
        key: An API key.
        code: The value after `#code=` in a login link; single use.
    """

    key: str | None = Field(default=None, min_length=1, max_length=500)
    code: str | None = Field(default=None, min_length=1, max_length=500)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.key is None) == (self.code is None):
            raise ValueError("give a key or a code")
        return self


class TaskCounts(Message):
    """Number of tasks by status, task type, owner, worker, model, training method and tag."""

    total: int
    status: dict[str, int]
    kind: dict[str, int]
    owner: dict[str, int]
    worker_id: dict[str, int]
    model: dict[str, int] = Field(default_factory=dict)
    method: dict[str, int] = Field(default_factory=dict)
    tag: dict[str, int] = Field(default_factory=dict)


class TaskDemand(Message):
    """Number of workers that the queued tasks would need, at one worker per task."""

    workers: int


class ExampleView(Message):
    """An example workflow: name, description, task types and YAML."""

    name: str
    description: str
    kinds: tuple[str, ...]
    document: str


class Overview(Message):
    """Overview of the server.

    Args:
        tasks: Status → number of tasks.
        workers: Status → number of workers.
        running: Running tasks with summaries, newest first; at most 100.
        queue: Next tasks in the queue; at most 10.
        failed: Last failed tasks; at most 10.
    """

    tasks: dict[str, int]
    workers: dict[str, int]
    running: tuple[TaskView, ...]
    queue: tuple[TaskView, ...]
    failed: tuple[TaskView, ...]


class EdgeView(Message):
    """Data that flows from one task of a workflow to another.

    Args:
        source: The upstream task.
        target: The downstream task.
        artifacts: Artifacts of the source that the target reads, without checkpoints.
        values: References to the source's result in the target's spec, such as `result.items.0.output`.
    """

    source: str
    target: str
    artifacts: tuple[ArtifactView, ...] = ()
    values: tuple[str, ...] = ()


class ManyRequest(Body):
    """Body of `POST /tasks/bulk`.

    Args:
        action: Action for each task.
        task_ids: Ids of the tasks.
        tags: The tags that `tag` adds and `untag` removes.
    """

    action: Literal["cancel", "retry", "remove", "tag", "untag"]
    task_ids: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]
    tags: Annotated[tuple[Tag, ...], Field(max_length=20)] = ()

    @model_validator(mode="after")
    def _tagged(self) -> Self:
        if bool(self.tags) != (self.action in {"tag", "untag"}):
            raise ValueError("`tags` belongs to the actions tag and untag")
        return self


class OneOfMany(Message):
    """Result for one task; `made` is the task that a retry has created."""

    task_id: str
    ok: bool
    made: str | None = None
    code: str | None = None
    detail: str | None = None
    hint: str | None = None


class ManyReply(Message):
    """Results for all tasks, in the order of the request."""

    items: tuple[OneOfMany, ...]


class SeriesView(Message):
    """A series of a task: names of its values, and number of valid points."""

    series: str
    names: tuple[str, ...]
    points: int
    first_step: int
    last_step: int
