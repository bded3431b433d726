"""The server's routes of campaigns and models as calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, RootModel

from tunefleet.client.call import Call, Emit, NextLine, OpenLines, Pause, SseReader, Stream, model, nothing, path
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.api import EventView, Page
from tunefleet.schemas.campaign import (
    CampaignApplied,
    CampaignDetail,
    CampaignLine,
    CampaignLog,
    CampaignRemerge,
    CampaignRetry,
    CampaignRollback,
    CampaignView,
    CycleView,
    LineageView,
    ModelVersionView,
)

if TYPE_CHECKING:
    from tunefleet.spec.documents.campaign_document import CampaignSpec

M = TypeVar("M", bound=BaseModel)
_SILENCE_S = 60.0
_PAUSE_S = 1.0


class _Raw(RootModel[dict[str, Any]]):
    """A body sent as it is: fields that the author omitted stay omitted, which a model with defaults cannot express."""


def apply_campaigns(campaigns: Mapping[str, CampaignSpec], *, start: bool = False) -> Call[tuple[CampaignApplied, ...]]:
    """Create or update your campaigns by name, all or none; other campaigns stay unchanged.

    Args:
        campaigns: Configuration of each campaign, by name.
        start: Also start campaigns that are paused, held or stopped, unless `enabled` is false.
    """
    from tunefleet.spec.documents.campaign_file import dump_campaign_spec

    wanted = {name: dump_campaign_spec(spec) for name, spec in campaigns.items()}
    return Call(
        "POST", "/campaigns", model(tuple[CampaignApplied, ...]), body=_Raw({"campaigns": wanted, "start": start})
    )


def list_campaigns(
    *, status: str | None = None, owner: str | None = None, limit: int = 100, cursor: str | None = None
) -> Call[Page[CampaignView]]:
    """Return a page of campaigns, newest first."""
    params = {"status": status, "owner": owner, "limit": limit, "cursor": cursor}
    return Call("GET", "/campaigns", model(Page[CampaignView]), params)


def get_campaign(campaign: str) -> Call[CampaignDetail]:
    """Return a campaign with its latest cycles, by name or id."""
    return Call("GET", path("campaigns", campaign), model(CampaignDetail))


def start_campaign(campaign: str) -> Call[CampaignDetail]:
    """Start a campaign that is paused, held or stopped."""
    return Call("POST", path("campaigns", campaign, "start"), model(CampaignDetail))


def pause_campaign(campaign: str) -> Call[CampaignDetail]:
    """Pause a campaign: no further step starts, but a run at an external provider continues."""
    return Call("POST", path("campaigns", campaign, "pause"), model(CampaignDetail))


def resume_campaign(campaign: str) -> Call[CampaignDetail]:
    """Resume a paused campaign."""
    return Call("POST", path("campaigns", campaign, "resume"), model(CampaignDetail))


def stop_campaign(campaign: str) -> Call[CampaignDetail]:
    """Stop a campaign: its open cycle is abandoned and that cycle's task is cancelled; models are kept."""
    return Call("POST", path("campaigns", campaign, "stop"), model(CampaignDetail))


def retry_campaign(campaign: str, *, cycle: int | None = None, step: StepName | None = None) -> Call[CampaignDetail]:
    """Resume a held campaign, or retry a failed cycle from the failed step.

    Args:
        campaign: Name or id of the campaign.
        cycle: Number of the cycle. Default: the one that failed last.
        step: First step to repeat. Default: the failed one.
    """
    body = CampaignRetry(cycle=cycle, step=step)
    return Call("POST", path("campaigns", campaign, "retry"), model(CampaignDetail), body=body, repeatable=False)


def remerge_campaign(campaign: str, *, cycle: int | None = None) -> Call[CampaignDetail]:
    """Merge the model of a cycle (default: the latest) again, without changing the promotion decision."""
    body = CampaignRemerge(cycle=cycle)
    return Call("POST", path("campaigns", campaign, "remerge"), model(CampaignDetail), body=body, repeatable=False)


def roll_back_campaign(campaign: str, *, version: int | None = None) -> Call[ModelVersionView]:
    """Promote an earlier version of a campaign's model (default: the previous one)."""
    body = CampaignRollback(version=version)
    return Call("POST", path("campaigns", campaign, "rollback"), model(ModelVersionView), body=body, repeatable=False)


def list_cycles(campaign: str, *, limit: int = 100, cursor: str | None = None) -> Call[Page[CycleView]]:
    """Return a page of a campaign's cycles with their steps, newest first."""
    params = {"limit": limit, "cursor": cursor}
    return Call("GET", path("campaigns", campaign, "cycles"), model(Page[CycleView]), params)


def campaign_lineage(campaign: str, *, limit: int = 100, cursor: str | None = None) -> Call[Page[LineageView]]:
    """Return how each cycle produced its model (chunk, task, candidates, evaluation, merge), newest first."""
    params = {"limit": limit, "cursor": cursor}
    return Call("GET", path("campaigns", campaign, "lineage"), model(Page[LineageView]), params)


def campaign_log(
    campaign: str, *, after: int | None = None, limit: int = 200, cycle: int | None = None
) -> Call[CampaignLog]:
    """Return lines of a campaign's log, oldest first: those after a given line, or the newest."""
    params = {"after": after, "limit": limit, "cycle": cycle}
    return Call("GET", path("campaigns", campaign, "log"), model(CampaignLog), params)


def follow_campaign_log(campaign: str, *, after: int | None = None, cycle: int | None = None) -> Stream[CampaignLine]:
    """Yield the lines of a campaign's log indefinitely; resumes after the last line when it reconnects.

    Args:
        campaign: Name or id of the campaign.
        after: Only lines after this one. Default: the newest lines first.
        cycle: Only lines of this cycle.
    """
    return _follow(path("campaigns", campaign, "log", "stream"), after, cycle, {"line": CampaignLine})


def watch_campaign(
    campaign: str, *, after: int | None = None, cycle: int | None = None
) -> Stream[CampaignLine | CampaignView]:
    """Yield the lines of a campaign's log, and the campaign itself whenever it changes, indefinitely.

    Args:
        campaign: Name or id of the campaign.
        after: Only lines after this one. Default: the newest lines first.
        cycle: Only lines of this cycle.
    """
    kinds: dict[str, type[CampaignLine | CampaignView]] = {"line": CampaignLine, "campaign": CampaignView}
    return _follow(path("campaigns", campaign, "live"), after, cycle, kinds)


def _follow(where: str, after: int | None, cycle: int | None, kinds: Mapping[str, type[M]]) -> Stream[M]:
    """Yield messages of these kinds; resumes after the last line when it reconnects."""
    while True:
        handle = None
        try:
            handle = yield OpenLines(_stream(where, {"after": after, "cycle": cycle}))
            reader = SseReader()
            while (line := (yield NextLine(handle))) is not None:
                event = reader.feed(line)
                if event is not None and event.event in kinds:
                    after = int(event.id) if event.event == "line" else after
                    yield Emit(kinds[event.event].model_validate_json(event.data))
        except UnreachableError:
            if handle is None:
                raise
        yield Pause(_PAUSE_S)


def follow_campaign(campaign: str, *, after: int | None = None) -> Stream[EventView]:
    """Yield the events of a campaign indefinitely; resumes after the last event when it reconnects.

    Args:
        campaign: Name or id of the campaign.
        after: Replay the events after this one first; `None` emits only new events.
    """
    while True:
        handle = None
        try:
            handle = yield OpenLines(_stream(path("campaigns", campaign, "events"), {"after": after}))
            reader = SseReader()
            while (line := (yield NextLine(handle))) is not None:
                event = reader.feed(line)
                if event is not None and event.id:
                    after = int(event.id)
                    yield Emit(EventView.model_validate_json(event.data))
        except UnreachableError:
            if handle is None:
                raise
        yield Pause(_PAUSE_S)


def list_models(
    *,
    name: str | None = None,
    owner: str | None = None,
    stage: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[Page[ModelVersionView]]:
    """Return a page of model versions, newest first."""
    params = {"name": name, "owner": owner, "stage": stage, "limit": limit, "cursor": cursor}
    return Call("GET", "/models", model(Page[ModelVersionView]), params)


def get_model(name: str, version: int | None = None, *, owner: str | None = None) -> Call[ModelVersionView]:
    """Return a version of a model (default: the promoted one, or the newest if none is promoted)."""
    where = ("models", name) if version is None else ("models", name, "versions", str(version))
    return Call("GET", path(*where), model(ModelVersionView), {"owner": owner})


def promote_model(name: str, version: int, *, owner: str | None = None) -> Call[ModelVersionView]:
    """Promote a version, regardless of the gate's decision; the previously promoted version is archived."""
    where = path("models", name, "versions", str(version), "promote")
    return Call("POST", where, model(ModelVersionView), {"owner": owner}, repeatable=False)


def roll_back_model(name: str, *, owner: str | None = None) -> Call[ModelVersionView]:
    """Promote the version that was promoted before the current one."""
    where = path("models", name, "rollback")
    return Call("POST", where, model(ModelVersionView), {"owner": owner}, repeatable=False)


def _stream(where: str, params: Mapping[str, int | None]) -> Call[None]:
    return Call("GET", where, nothing, params, headers={"Accept": "text/event-stream"}, read_timeout_s=_SILENCE_S)
