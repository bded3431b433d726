"""Notifications: where users want to hear of what, and what they were told."""

from __future__ import annotations

from typing import Annotated, Final, get_args

from fastapi import Query

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, names, one_of, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.notifications import channels, history
from tunefleet.schemas.api import Page
from tunefleet.schemas.notify import (
    ChannelChange,
    ChannelCreate,
    ChannelCreated,
    ChannelTestReply,
    ChannelView,
    NoticeState,
    NotificationView,
)

router = api_router(prefix="/notifications", tags=["notifications"])

_STATES: Final = get_args(NoticeState)
States = Annotated[str | None, one_of(_STATES), Query(description=f"Of {', '.join(_STATES)}; several with commas.")]
OfTasks = Annotated[
    str | None, Query(description="Only of these tasks; several with commas.", examples=["task-0123456789ab"])
]
OfChannel = Annotated[str | None, Query(description="Only to this channel: its id, or a name of yours.")]


@router.get("")
async def list_notifications(
    core: CoreDep,
    who: Reader,
    limit: Limit = 100,
    cursor: Cursor = None,
    task_id: OfTasks = None,
    channel: OfChannel = None,
    state: States = None,
) -> Page[NotificationView]:
    """List what you were told or are to be told, newest first; an admin sees it of everybody."""
    return await history.list_(
        core, who, limit=limit, cursor=cursor, task_ids=names(task_id), channel=channel, states=names(state)
    )


@router.get("/channels")
async def list_channels(core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None) -> Page[ChannelView]:
    """List your channels, without their secrets; an admin sees everybody's."""
    return page(Page[ChannelView], await channels.list_(core, who), limit, cursor)


@router.post("/channels", status_code=201)
async def create_channel(core: CoreDep, who: Member, channel: ChannelCreate) -> ChannelCreated:
    """Create a channel; the secret that signs what goes to a webhook is shown this once."""
    return await channels.create(core, who, channel)


@router.get("/channels/{channel_id}")
async def get_channel(core: CoreDep, who: Reader, channel_id: str) -> ChannelView:
    """Show a channel, by its id or a name of yours."""
    return await channels.get(core, who, channel_id)


@router.patch("/channels/{channel_id}")
async def change_channel(core: CoreDep, who: Member, channel_id: str, change: ChannelChange) -> ChannelView:
    """Change a channel; what is left out stays, and what waits goes to a new address."""
    return await channels.change(core, who, channel_id, change)


@router.delete("/channels/{channel_id}", status_code=204)
async def remove_channel(core: CoreDep, who: Member, channel_id: str) -> None:
    """Remove a channel; what waits for it is given up."""
    await channels.remove(core, who, channel_id)


@router.post("/channels/{channel_id}/test")
async def test_channel(core: CoreDep, who: Member, channel_id: str) -> ChannelTestReply:
    """Send a message that says that it is a test, and say how it went."""
    return await channels.test(core, who, channel_id)
