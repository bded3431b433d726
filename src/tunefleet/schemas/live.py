"""Messages of the page's one stream (`GET /live`): each is the data of a server-sent event of that name."""

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
        version: Of the server: another one than before means that the page is old.
        now: The server's time.
        missed: So much has happened since the place that was asked for that it is not sent: read everything anew.
        unknown: The ids in `points` that no task has, or that several begin with; nothing comes of them.
    """

    version: str
    now: datetime
    missed: bool = False
    unknown: tuple[str, ...] = ()


class LiveEvents(Message):
    """`events`: what happened, oldest first; several come together."""

    events: tuple[EventView, ...]


class TaskProgress(Message):
    """Where a running task stands.

    Args:
        progress: Its newest progress record.
        loss: The newest loss of its series `train`, and the step that it belongs to.
    """

    task_id: str
    workflow_id: str
    worker_id: str | None = None
    progress: ProgressView
    loss: tuple[int, float] | None = None


class LiveProgress(Message):
    """`progress`: the running tasks that have come on since the last message, all in one, once a second at most."""

    tasks: tuple[TaskProgress, ...]


class CampaignActivity(Message):
    """What the running cycle of a campaign does now.

    Args:
        step: The one under way.
        activity: How far the step is, once it has said so.
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
    """`campaigns`: the running cycles that have come on since the last message, once a second at most."""

    cycles: tuple[CampaignActivity, ...]


class WorkerLoad(Message):
    """How busy a worker is.

    Args:
        at: When it told so, by the server's clock; its history has the same time.
    """

    worker_id: str
    at: datetime
    load: Load


class LiveLoads(Message):
    """`loads`: the workers that have told other figures since the last message."""

    workers: tuple[WorkerLoad, ...]


class LivePoint(Message):
    """Values that were logged at a step of a launch."""

    launch: int
    series: str
    step: int
    epoch: float | None = None
    at: datetime
    values: dict[str, float | str]


class LiveResume(Message):
    """A launch has gone on from a step: what earlier launches logged beyond it counts no more.

    What counts up to there may be another launch's than before: who keeps points reads them again.
    """

    launch: int
    from_step: int


class LivePoints(Message):
    """`points`: what a followed task has logged since the last message, each point once, in order of its launch.

    `resumed` comes before the points.
    """

    task_id: str
    resumed: tuple[LiveResume, ...] = ()
    points: tuple[LivePoint, ...] = ()
