"""Campaigns: create, change and control them, read their logs and follow their events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import Header, Path, Query, Request, Response
from pydantic import BaseModel, Field
from sse_starlette import ServerSentEvent

from tunefleet.api import request_bodies, sse
from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, names, one_of
from tunefleet.api.routers import api_router
from tunefleet.campaign.service import history, retries, service
from tunefleet.campaign.service.status import topic
from tunefleet.lifecycle.cycle import CampaignStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.api import Page
from tunefleet.schemas.base import Body
from tunefleet.schemas.campaign import (
    CampaignApplied,
    CampaignDetail,
    CampaignLog,
    CampaignRemerge,
    CampaignRetry,
    CampaignRollback,
    CampaignView,
    CycleView,
    LineageView,
    ModelVersionView,
)
from tunefleet.spec.documents.campaign_document import CampaignSpec

router = api_router(prefix="/campaigns", tags=["campaigns"])

CampaignId = Annotated[str, Path(max_length=128, description="Name or id of the campaign.")]
Line = Annotated[
    int | None, Query(ge=0, le=2**62, description="Return only lines after this one. Default: the newest lines.")
]
Cycle = Annotated[int | None, Query(ge=0, lt=2**31, description="Return only lines of this cycle.")]
_LOOK_S: Final = 10.0


# A campaign's name in a campaign file.
CampaignName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class CampaignApply(Body):
    """Campaigns to create or change; others do not change.

    Args:
        campaigns: Configuration of each campaign, by name.
        start: Also start campaigns that are paused, held or stopped, unless `enabled` is false.
    """

    campaigns: dict[CampaignName, CampaignSpec] = Field(min_length=1, max_length=100)
    start: bool = False


class CampaignFilter(BaseModel):
    """Filters of the campaign list. Separate several values with commas."""

    limit: Limit = 50
    cursor: Cursor = None
    status: Annotated[str | None, one_of(CampaignStatus), Field(examples=["active"])] = None
    owner: str | None = None


@router.post("", openapi_extra=request_bodies.documented(request_bodies.json_of(CampaignApply)))
async def apply(request: Request, core: CoreDep, who: Member) -> tuple[CampaignApplied, ...]:
    """Create or update your campaigns by name, all or none. Other campaigns do not change."""
    wanted = await request_bodies.read(request, CampaignApply)
    return await service.apply(core, who, wanted.campaigns, start=wanted.start)


@router.get("")
async def list_campaigns(core: CoreDep, who: Reader, wanted: Annotated[CampaignFilter, Query()]) -> Page[CampaignView]:
    """List campaigns, newest first."""
    return await service.list_(
        core, who, limit=wanted.limit, cursor=wanted.cursor, statuses=names(wanted.status), owner=wanted.owner
    )


@router.get("/{campaign}")
async def get(core: CoreDep, who: Reader, campaign: CampaignId) -> CampaignDetail:
    """Retrieve a campaign with its latest cycles and their steps."""
    return await service.get(core, who, campaign)


@router.post("/{campaign}/start")
async def start_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Start a campaign, whether it is paused, held or stopped."""
    return await service.start(core, who, campaign)


@router.post("/{campaign}/pause")
async def pause_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Pause a campaign: no further step starts. A training run at an external provider continues."""
    return await service.pause(core, who, campaign)


@router.post("/{campaign}/resume")
async def resume_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Resume a paused campaign."""
    return await service.resume(core, who, campaign)


@router.post("/{campaign}/stop")
async def stop_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Stop a campaign: its open cycle is abandoned and that cycle's task cancelled. Its models are kept."""
    return await service.stop(core, who, campaign)


@router.post("/{campaign}/retry")
async def retry_campaign(core: CoreDep, who: Member, campaign: CampaignId, wanted: CampaignRetry) -> CampaignDetail:
    """Resume a held campaign, or repeat a failed cycle from the failed step, with the latest configuration."""
    return await retries.retry(core, who, campaign, wanted)


@router.post("/{campaign}/remerge")
async def remerge(core: CoreDep, who: Member, campaign: CampaignId, wanted: CampaignRemerge) -> CampaignDetail:
    """Merge, publish and record the model of a cycle again. The promotion decision stays."""
    return await retries.remerge(core, who, campaign, wanted.cycle)


@router.post("/{campaign}/rollback")
async def roll_back(core: CoreDep, who: Member, campaign: CampaignId, wanted: CampaignRollback) -> ModelVersionView:
    """Promote an earlier version of a campaign's model. The next cycle starts from it and is compared with it."""
    return await retries.rollback(core, who, campaign, wanted.version)


@router.get("/{campaign}/cycles")
async def list_cycles(
    core: CoreDep, who: Reader, campaign: CampaignId, limit: Limit = 50, cursor: Cursor = None
) -> Page[CycleView]:
    """List the cycles of a campaign with their steps, newest first."""
    return await history.list_cycles(core, who, campaign, limit=limit, cursor=cursor)


@router.get("/{campaign}/lineage")
async def lineage(
    core: CoreDep, who: Reader, campaign: CampaignId, limit: Limit = 50, cursor: Cursor = None
) -> Page[LineageView]:
    """List how each cycle produced its model: chunk, task, candidates, evaluation, merged model. Newest first."""
    return await history.lineage(core, who, campaign, limit=limit, cursor=cursor)


@router.get("/{campaign}/log")
async def read_log(
    core: CoreDep, who: Reader, campaign: CampaignId, after: Line = None, limit: Limit = 200, cycle: Cycle = None
) -> CampaignLog:
    """List lines of a campaign's log, oldest first."""
    return await history.read_log(core, who, campaign, after=after, limit=limit, cycle=cycle)


@router.get("/{campaign}/log/stream", response_class=sse.EventStream)
async def follow_log(
    request: Request,
    core: CoreDep,
    who: Reader,
    campaign: CampaignId,
    after: Line = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**62)] = None,
    cycle: Cycle = None,
) -> Response:
    """Stream a campaign's log. Each message is a line.

    The stream starts after `Last-Event-ID` or `after`; without either, with the newest lines.
    """
    asked = last_event_id if last_event_id is not None else after
    first = await history.read_log(core, who, campaign, after=asked, cycle=cycle)
    where = await history.topic_of(core, who, campaign)
    return sse.respond(request, _lines(core, who, campaign, cycle, first, where))


@router.get("/{campaign}/live", response_class=sse.EventStream)
async def watch(
    request: Request,
    core: CoreDep,
    who: Reader,
    campaign: CampaignId,
    after: Line = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**62)] = None,
    cycle: Cycle = None,
) -> Response:
    """Stream a campaign's log and progress.

    A `line` message is a line of the log. A `campaign` message is the campaign as in the list: first its current state,
    then every change, about once a second while a step reports progress. The stream starts after `Last-Event-ID` or
    `after`.
    """
    asked = last_event_id if last_event_id is not None else after
    first = await history.read_log(core, who, campaign, after=asked, cycle=cycle)
    where = await history.topic_of(core, who, campaign)
    return sse.respond(request, _lines(core, who, campaign, cycle, first, where, live=True))


async def _lines(
    core: ServerContext,
    who: Actor,
    campaign: str,
    cycle: int | None,
    first: CampaignLog,
    where: str,
    *,
    live: bool = False,
) -> AsyncIterator[ServerSentEvent]:
    signals, found, shown = core.signals, first, ""
    while not signals.closed:
        for line in found.lines:
            yield ServerSentEvent(line.model_dump_json(), id=str(line.id), event="line")
        seen = signals.version(where)
        if live and (now := (await service.summary(core, who, campaign)).model_dump_json()) != shown:
            yield ServerSentEvent(now, event="campaign")
            shown = now
        last, found = found, await history.read_log(core, who, campaign, after=found.next_id, cycle=cycle)
        if not found.lines:
            found = last.model_copy(update={"lines": ()})
            await signals.wait(where, _LOOK_S, seen)


@router.get("/{campaign}/events", response_class=sse.EventStream)
async def follow(
    request: Request,
    core: CoreDep,
    who: Reader,
    campaign: CampaignId,
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**62)] = None,
) -> Response:
    """Stream the events of a campaign.

    The stream starts after `Last-Event-ID` or `after`; without either, with the next event. `campaign.step`: a step is
    done. `campaign.promoted`: there is a better model. `campaign.failed`: a cycle failed. `campaign.held`: the campaign
    needs a manual decision. `campaign.uncancelled`: the task of an abandoned cycle could not be cancelled yet.
    """
    asked = last_event_id if last_event_id is not None else after
    id_, start = await history.follow_from(core, who, campaign, asked)
    return sse.respond(request, _news(core, who, id_, start))


async def _news(core: ServerContext, who: Actor, campaign_id: str, start: int) -> AsyncIterator[ServerSentEvent]:
    signals = core.signals
    while not signals.closed:
        seen = signals.version(topic(campaign_id))
        found = await history.events_after(core, who, campaign_id, start)
        for event in found:
            yield ServerSentEvent(event.model_dump_json(), id=str(event.id), event=event.kind)
        start = found[-1].id if found else start
        if len(found) < history.PAGE:
            await signals.wait(topic(campaign_id), _LOOK_S, seen)
