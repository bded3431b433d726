"""Campaigns: make, change and steer them, read their log and follow what happens to them."""

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
from tunefleet.lifecycle.cycle import CampaignStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.campaigns import history, retries, service
from tunefleet.orchestrator.campaigns.status import topic
from tunefleet.orchestrator.context import Core
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

CampaignId = Annotated[str, Path(max_length=128, description="Its name, or its id.")]
Line = Annotated[int | None, Query(ge=0, le=2**62, description="Only what is behind this line; else the newest.")]
Cycle = Annotated[int | None, Query(ge=0, lt=2**31, description="Only of this cycle.")]
_LOOK_S: Final = 10.0


# What a file calls a campaign.
CampaignName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class CampaignApply(Body):
    """Campaigns to make or to change; those that are not named stay as they are.

    Args:
        campaigns: Name → what is wanted of it.
        start: Let those that are paused, held or stopped go on, unless they are not `enabled`.
    """

    campaigns: dict[CampaignName, CampaignSpec] = Field(min_length=1, max_length=100)
    start: bool = False


class CampaignFilter(BaseModel):
    """Which campaigns to list; a filter takes several values separated by commas."""

    limit: Limit = 50
    cursor: Cursor = None
    status: Annotated[str | None, one_of(CampaignStatus), Field(examples=["active"])] = None
    owner: str | None = None


@router.post("", openapi_extra=request_bodies.documented(request_bodies.json_of(CampaignApply)))
async def apply(request: Request, core: CoreDep, who: Member) -> tuple[CampaignApplied, ...]:
    """Make or change your campaigns by name, all or none; those that are not named stay as they are."""
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
    """Show a campaign with its newest cycles and their steps."""
    return await service.get(core, who, campaign)


@router.post("/{campaign}/start")
async def start_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Let a campaign go on, whatever it rests for."""
    return await service.start(core, who, campaign)


@router.post("/{campaign}/pause")
async def pause_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Begin no further step of a campaign; what a provider trains goes on there."""
    return await service.pause(core, who, campaign)


@router.post("/{campaign}/resume")
async def resume_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """Let a paused campaign go on."""
    return await service.resume(core, who, campaign)


@router.post("/{campaign}/stop")
async def stop_campaign(core: CoreDep, who: Member, campaign: CampaignId) -> CampaignDetail:
    """End a campaign: its open cycle is given up, and that cycle's task is cancelled; its models stay."""
    return await service.stop(core, who, campaign)


@router.post("/{campaign}/retry")
async def retry_campaign(core: CoreDep, who: Member, campaign: CampaignId, wanted: CampaignRetry) -> CampaignDetail:
    """Let a held campaign go on, or a failed cycle go back to the step that failed; with the newest configuration."""
    return await retries.retry(core, who, campaign, wanted)


@router.post("/{campaign}/remerge")
async def remerge(core: CoreDep, who: Member, campaign: CampaignId, wanted: CampaignRemerge) -> CampaignDetail:
    """Merge the model of a cycle once more, and publish and record it; what was decided about it stays."""
    return await retries.remerge(core, who, campaign, wanted.cycle)


@router.post("/{campaign}/rollback")
async def roll_back(core: CoreDep, who: Member, campaign: CampaignId, wanted: CampaignRollback) -> ModelVersionView:
    """Promote an earlier version of a campaign's model: the next cycle starts from it, and is compared with it."""
    return await retries.rollback(core, who, campaign, wanted.version)


@router.get("/{campaign}/cycles")
async def list_cycles(
    core: CoreDep, who: Reader, campaign: CampaignId, limit: Limit = 50, cursor: Cursor = None
) -> Page[CycleView]:
    """List cycles of a campaign with their steps, newest first."""
    return await history.list_cycles(core, who, campaign, limit=limit, cursor=cursor)


@router.get("/{campaign}/lineage")
async def lineage(
    core: CoreDep, who: Reader, campaign: CampaignId, limit: Limit = 50, cursor: Cursor = None
) -> Page[LineageView]:
    """Show how each cycle came to its model: chunk, task, candidates, evaluation, merged model; newest first."""
    return await history.lineage(core, who, campaign, limit=limit, cursor=cursor)


@router.get("/{campaign}/log")
async def read_log(
    core: CoreDep, who: Reader, campaign: CampaignId, after: Line = None, limit: Limit = 200, cycle: Cycle = None
) -> CampaignLog:
    """Return lines of the log of a campaign, oldest first."""
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
    """Follow the log of a campaign, from behind `Last-Event-ID` or `after`; without either, from its newest lines on.

    Each message is a line.
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
    """Follow a campaign as it goes on: its log as `log/stream` gives it, and how far its step is.

    A message `line` is a line of the log; a message `campaign` is the campaign as a list shows it, first as it is and
    then whenever that has changed, about once a second while a step counts what it does.
    """
    asked = last_event_id if last_event_id is not None else after
    first = await history.read_log(core, who, campaign, after=asked, cycle=cycle)
    where = await history.topic_of(core, who, campaign)
    return sse.respond(request, _lines(core, who, campaign, cycle, first, where, live=True))


async def _lines(
    core: Core, who: Actor, campaign: str, cycle: int | None, first: CampaignLog, where: str, *, live: bool = False
) -> AsyncIterator[ServerSentEvent]:
    signals, found, shown = core.signals, first, ""
    while not signals.closed:
        for line in found.lines:
            yield ServerSentEvent(line.model_dump_json(), id=str(line.id), event="line")
        seen = signals.version(where)
        if live and (now := (await service.glance(core, who, campaign)).model_dump_json()) != shown:
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
    """Follow what happens to a campaign, from behind `Last-Event-ID` or `after`; without either, from now on.

    `campaign.step` says that a step is done, `campaign.promoted` that there is a better model, `campaign.failed` that
    a cycle failed, `campaign.held` that it waits for a person, `campaign.uncancelled` that the task of a cycle that was
    given up could not be ended yet.
    """
    asked = last_event_id if last_event_id is not None else after
    id_, start = await history.follow_from(core, who, campaign, asked)
    return sse.respond(request, _news(core, who, id_, start))


async def _news(core: Core, who: Actor, campaign_id: str, start: int) -> AsyncIterator[ServerSentEvent]:
    signals = core.signals
    while not signals.closed:
        seen = signals.version(topic(campaign_id))
        found = await history.events_after(core, who, campaign_id, start)
        for event in found:
            yield ServerSentEvent(event.model_dump_json(), id=str(event.id), event=event.kind)
        start = found[-1].id if found else start
        if len(found) < history.PAGE:
            await signals.wait(topic(campaign_id), _LOOK_S, seen)
