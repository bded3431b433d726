"""Where the promoted models of a campaign go, and whether they may."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

from tunefleet.campaign import progress
from tunefleet.campaign.contract import StepContext
from tunefleet.campaign.hub_models import HUB
from tunefleet.campaign.object_store import endpoint_of
from tunefleet.integrations.publishing.targets import Target, Wishes, target
from tunefleet.settings import CampaignSettings, PublishSettings, load
from tunefleet.spec.documents.campaign_document import GRADIENTS, CampaignSpec

NONE: Final = "none"
_CYCLE: Final = "{cycle}"
# What no name of the hub has.
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]+|--+|\.\.+")
_LONGEST: Final = 80


def place(
    name: str, spec: CampaignSpec, settings: CampaignSettings, provider: str, *, there: bool | None = None
) -> str:
    """Return where models go: where the campaign says, else where its provider can fetch them, else `none`."""
    if "to" in spec.publish.model_fields_set or provider != GRADIENTS or settings.hf_username is None:
        return spec.publish.to
    if on_runpod(spec, settings) if there is None else there:
        return NONE  # the merge puts it there
    # A repository for each: a later model in the same one would take the place of what a rollback goes back to.
    return f"{HUB}{settings.hf_username}/{_STRANGE.sub('-', name)[:_LONGEST].strip('-.') or 'campaign'}-{_CYCLE}"


def on_runpod(spec: CampaignSpec, settings: CampaignSettings) -> bool:
    """Return whether RunPod merges, and puts the result on the hub."""
    return (spec.merge.on or ("runpod" if settings.use_runpod else "fleet")) == "runpod"


def place_of(context: StepContext, *, there: bool | None = None) -> str | None:
    """Return where the model of this cycle goes, if it is promoted; null for nowhere."""
    to = place(context.state.name, context.spec, context.settings, context.provider.name, there=there)
    to = to.replace(_CYCLE, str(context.state.number))
    return None if to == NONE else to.rstrip("/") if to.startswith(HUB) else to


async def check(context: StepContext, to: str) -> None:
    """Look whether a place may be written, and holds nothing that this campaign has not put there.

    Raises:
        ConflictError: If something else is there.
        ForbiddenError: If there is no key, or it may not write.
        InputError: If there can be no such place.
        UnreachableError: If the place does not answer.
    """
    own = bool(await context.book.published(context.state, to))
    await asyncio.to_thread((await opened(context, to, force=own)).check)


async def opened(context: StepContext, to: str, *, force: bool = True) -> Target:
    """Return a place to publish to, with the campaign's keys."""
    wishes = Wishes(private=context.spec.publish.private and to.startswith(HUB), force=force)
    return await asyncio.to_thread(target, to, wishes, keys(context.settings))


async def fetch(context: StepContext, artifact_id: str, folder: Path) -> Path:
    """Fetch what a task of our server has left, and tell how far that is; returns where it lies."""
    async with progress.counted(context, "downloading", of=artifact_id) as got:
        return await context.client.artifacts.fetch(artifact_id, folder, on_progress=got.follow)


async def put(context: StepContext, to: str, folder: Path) -> str:
    """Publish a folder, over what is there, and tell how far that is; returns where it lies, for a person.

    Raises:
        ForbiddenError: If there is no key, or it may not write.
        UnreachableError: If the place does not answer.
    """
    place = await opened(context, to)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    async with progress.counted(context, "publishing", size, of=to) as sent:
        return await asyncio.to_thread(place.put, folder, sent.add)


def keys(settings: CampaignSettings) -> PublishSettings:
    """Return the keys for places: those of the campaigns' store, where it is set up, and else Amazon's."""
    found = load(PublishSettings)
    if settings.hf_token is not None:
        found = found.model_copy(update={"hf_token": settings.hf_token})
    if not settings.s3_endpoint or settings.s3_access_key is None or settings.s3_secret_key is None:
        return found
    own = {
        "s3_endpoint": endpoint_of(settings.s3_endpoint),
        "s3_access_key": settings.s3_access_key,
        "s3_secret_key": settings.s3_secret_key,
        "s3_session_token": None,
    }
    return found.model_copy(update=own)
