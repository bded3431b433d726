"""Notifications: channels and deliveries."""

from __future__ import annotations

from typing import Annotated, Final, get_args

from fastapi import Query

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import Cursor, Limit, names, one_of, page
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.notifications import channels, delivery
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
States = Annotated[str | None, one_of(_STATES), Query(description=f"Comma-separated: {', '.join(_STATES)}.")]
OfTasks = Annotated[str | None, Query(description="Comma-separated task ids.", examples=["task-0123456789ab"])]
OfChannel = Annotated[str | None, Query(description="Id of a channel, or the name of one of your channels.")]


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
    """List your notifications, sent and pending, newest first. Admins see everyone's."""
    return await delivery.list_notifications(
        core, who, limit=limit, cursor=cursor, task_ids=names(task_id), channel=channel, states=names(state)
    )


@router.get("/channels")
async def list_channels(core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None) -> Page[ChannelView]:
    """List your channels, without their secrets. Admins see everyone's."""
    return page(Page[ChannelView], await channels.list_(core, who), limit, cursor)


@router.post("/channels", status_code=201)
async def create_channel(core: CoreDep, who: Member, channel: ChannelCreate) -> ChannelCreated:
    """Create a channel. The secret that signs webhook requests is shown only once."""
    return await channels.create(core, who, channel)


@router.get("/channels/{channel_id}")
async def get_channel(core: CoreDep, who: Reader, channel_id: str) -> ChannelView:
    """Retrieve a channel by its id, or one of your channels by its name."""
    return await channels.get(core, who, channel_id)


@router.patch("/channels/{channel_id}")
async def change_channel(core: CoreDep, who: Member, channel_id: str, change: ChannelChange) -> ChannelView:
    """Update a channel. Omitted fields stay unchanged; pending notifications go to the new address."""
    return await channels.change(core, who, channel_id, change)


@router.delete("/channels/{channel_id}", status_code=204)
async def remove_channel(core: CoreDep, who: Member, channel_id: str) -> None:
    """Delete a channel. Its pending notifications are dropped."""
    await channels.remove(core, who, channel_id)


@router.post("/channels/{channel_id}/test")
async def test_channel(core: CoreDep, who: Member, channel_id: str) -> ChannelTestReply:
    """Send a test message, and return whether it was delivered."""
    return await channels.test(core, who, channel_id)
