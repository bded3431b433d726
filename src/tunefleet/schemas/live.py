"""Messages of the web UI's stream (`GET /live`): each is the data of the server-sent event of that name."""

from __future__ import annotations

from datetime import datetime

from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.api import EventView, ProgressView
from tunefleet.schemas.base import Message
from tunefleet.schemas.campaign import ActivityView
from tunefleet.schemas.worker_link import Load


class LiveHello(Message):
    """`hello`, the first message of each connection.

    Args:
        version: Version of the server; if it changes, the page is outdated.
        now: The server's time.
        missed: Too many events since the requested position; the client must reload its data.
        unknown: Ids in `points` that match no task or several; they are ignored.
    """

    version: str
    now: datetime
    missed: bool = False
    unknown: tuple[str, ...] = ()


class LiveEvents(Message):
    """`events`: a batch of events, oldest first."""

    events: tuple[EventView, ...]


class TaskProgress(Message):
    """Progress of a running task.

    Args:
        progress: Its newest progress record.
        loss: Step and value of the newest loss in its series `train`.
    """

    task_id: str
    workflow_id: str
    worker_id: str | None = None
    progress: ProgressView
    loss: tuple[int, float] | None = None


class LiveProgress(Message):
    """`progress`: running tasks with new progress since the last message, at most once per second."""

    tasks: tuple[TaskProgress, ...]


class CampaignActivity(Message):
    """Current activity of a campaign's running cycle.

    Args:
        step: The current step.
        activity: Progress of the step, once reported.
        line: Id of the newest line of the campaign's log; 0 for none.
    """

    campaign_id: str
    name: str
    cycle: int
    step: StepName
    waiting: str | None = None
    activity: ActivityView | None = None
    line: int = 0


class LiveCampaigns(Message):
    """`campaigns`: running cycles with new progress since the last message, at most once per second."""

    cycles: tuple[CampaignActivity, ...]


class WorkerLoad(Message):
    """Load of a worker.

    Args:
        at: Time of the report by the server's clock, as in the worker's history.
    """

    worker_id: str
    at: datetime
    load: Load


class LiveLoads(Message):
    """`loads`: workers with new load values since the last message."""

    workers: tuple[WorkerLoad, ...]


class LivePoint(Message):
    """Values logged at a step of a launch."""

    launch: int
    series: str
    step: int
    epoch: float | None = None
    at: datetime
    values: dict[str, float | str]


class LiveResume(Message):
    """A launch has resumed from a step: later points of earlier launches are superseded.

    The valid points up to that step may also change to those of another launch, so clients must reload them.
    """

    launch: int
    from_step: int


class LivePoints(Message):
    """`points`: new points of a followed task since the last message, each once, ordered by launch.

    `resumed` comes before the points.
    """

    task_id: str
    resumed: tuple[LiveResume, ...] = ()
    points: tuple[LivePoint, ...] = ()
