"""Maps events to notification occasions, and loads their task, worker or campaign."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import attempts, dependencies, journal, tasks, workflows
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.notifications.messages import Happening, campaign_text, worker_text
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.notify import ToldCampaign, ToldTask, ToldWorkflow, WebhookPayload
from tunefleet.spec.options.notify import Occasion

# Task reasons that are occasions of their own.
_OWN_NAME: Final[dict[str, Occasion]] = {
    "out_of_memory": "out_of_memory",
    "stalled": "stalled",
    "worker_lost": "worker_lost",
}
_PLAIN: Final[dict[str, tuple[Occasion, ...]]] = {
    "task.completed": ("done",),
    "task.paused": ("paused",),
    "task.stalled": ("stalled",),
    "worker.lost": ("worker_lost",),
    "campaign.promoted": ("promoted",),
    "campaign.budget": ("budget",),
    "campaign.failed": ("failed",),
    "campaign.held": ("failed",),
    "campaign.uncancelled": ("failed",),
}
_MAX_ERROR: Final = 1000
# Number of newest points searched for the last loss; some have other values only.
_NEWEST: Final = 20


def occasions(event: Event) -> tuple[Occasion, ...]:
    """Return the occasions of an event, the most specific first; empty if it causes no notification."""
    if event.kind.startswith("campaign.") and _is_duplicate(event):
        return ()
    if event.kind not in {"task.failed", "task.retrying"}:
        return _PLAIN.get(event.kind, ())
    own = _OWN_NAME.get(str(event.data.get("reason")))
    named: tuple[Occasion, ...] = () if own is None else (own,)
    return (*named, "failed") if event.kind == "task.failed" else named


def _is_duplicate(event: Event) -> bool:
    """Whether another event of the campaign, in the same transaction, carries the same information."""
    held = event.kind == "campaign.held"
    return event.data.get("cause") == "budget" if held else bool(event.data.get("held"))


@dataclass(frozen=True, slots=True)
class Case:
    """An event with its task, worker or campaign.

    Args:
        task: The task; None if the event is about a worker or a campaign.
    """

    event_id: int
    event: Event
    owner: str
    task: TaskRow | None = None
    workflow: str = ""
    loss: tuple[int, float] | None = None
    campaign: CampaignRow | None = None

    @property
    def subject(self) -> str | None:
        """The id of the task or campaign that may have subscriptions."""
        about = self.task or self.campaign
        return None if about is None else about.id

    def payload(self, id_: str, occasion: Occasion, base_url: str | None) -> WebhookPayload:
        """Return the message."""
        event, row = self.event, self.task
        shared: dict[str, Any] = {"id": id_, "event": occasion, "at": to_datetime(event.at)}
        if self.campaign is not None:
            return self._of_campaign(self.campaign, shared, base_url)
        if row is None:
            worker_id = event.worker_id or ""
            title, text, command = worker_text(worker_id)
            url = None if base_url is None else f"{base_url}/api/v1/workers/{worker_id}"
            return WebhookPayload(**shared, title=title, text=text, worker_id=worker_id, url=url, command=command)
        task = self._task(row)
        happening = Happening(occasion, task, self.workflow, event.kind, event.data.get("silent_s"))
        return WebhookPayload(
            **shared,
            title=happening.title,
            text=happening.text,
            task=task,
            workflow=ToldWorkflow(id=row.workflow_id, name=self.workflow),
            url=None if base_url is None else f"{base_url}/api/v1/tasks/{row.id}",
            command=happening.command,
        )

    def _of_campaign(self, row: CampaignRow, shared: Mapping[str, Any], base_url: str | None) -> WebhookPayload:
        data = self.event.data
        title, text, command = campaign_text(self.event.kind, row.name, data)
        about = {name: data.get(name) for name in ("cycle", "step", "version")}
        return WebhookPayload(
            **shared,
            title=title,
            text=scrub(text)[:_MAX_ERROR],
            campaign=ToldCampaign(id=row.id, name=row.name, owner=row.owner, **about),
            url=None if base_url is None else f"{base_url}/api/v1/campaigns/{row.id}",
            command=command,
        )

    def _task(self, row: TaskRow) -> ToldTask:
        event = self.event
        error = event.data.get("error")
        step, loss = self.loss or (None, None)
        return ToldTask(
            id=row.id,
            name=row.name,
            kind=row.kind,
            owner=row.owner,
            status=str(event.data.get("status", row.status)),
            reason=event.data.get("reason"),
            error=None if error is None else scrub(str(error))[:_MAX_ERROR],
            worker_id=event.worker_id,
            attempts=row.attempts,
            runtime_s=None if row.started_at is None else max(0.0, event.at - row.started_at),
            loss=loss,
            step=step,
        )


def cases(connection: Connection, numbered: Sequence[tuple[int, Event]]) -> list[Case]:
    """Return the cases of events, in order; shards are left out, because their parent task is reported."""
    rows = tasks.by_ids(connection, [event.task_id for _, event in numbered if event.task_id is not None])
    found = [case for event_id, event in numbered for case in _of_event(connection, event_id, event, rows)]
    seqs = [case.task.seq for case in found if case.task is not None]
    parts = dependencies.shards_of(connection, seqs)
    named = workflows.by_ids(connection, [case.task.workflow_id for case in found if case.task is not None])
    return [
        case if case.task is None else _with_details(connection, case, case.task, named[case.task.workflow_id].name)
        for case in found
        if case.task is None or case.task.seq not in parts
    ]


def _of_event(connection: Connection, event_id: int, event: Event, rows: dict[str, TaskRow]) -> Iterator[Case]:
    if event.task_id is not None:
        row = rows.get(event.task_id)
        if row is not None:
            yield Case(event_id, event, row.owner, row)
        return
    if event.campaign_seq is not None:
        campaign = campaigns.by_seq(connection, event.campaign_seq)
        if campaign is not None:
            yield Case(event_id, event, campaign.owner, campaign=campaign)
        return
    worker = worker_rows.get(connection, event.worker_id or "")
    if worker is None:
        yield Case(event_id, event, "")
    else:
        yield Case(event_id, replace(event, project=worker.project), worker.owner)
    # Attempts that are still open wait for the worker to return; rescheduled tasks have events of their own.
    waiting = [row.task_id for row in attempts.open_of(connection, event.worker_id or "").values()]
    for row in tasks.by_ids(connection, waiting).values():
        yield Case(event_id, replace(event, project=row.project), row.owner, row)


def _with_details(connection: Connection, case: Case, row: TaskRow, workflow: str) -> Case:
    trained = row.slot_class == "job" and case.event.data.get("status") != TaskStatus.PENDING
    loss = _loss(connection, row.id) if trained else None
    return Case(case.event_id, case.event, case.owner, row, workflow, loss)


def _loss(connection: Connection, task_id: str) -> tuple[int, float] | None:
    for step, text in journal.newest_values(connection, task_id, series="train", limit=_NEWEST):
        loss = orjson.loads(text).get("loss")
        if isinstance(loss, int | float):
            return step, float(loss)
    return None
