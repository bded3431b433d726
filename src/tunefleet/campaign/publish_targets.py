"""Publish targets of a campaign's promoted models, and checks of them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from tunefleet.campaign import progress
from tunefleet.campaign.contract import Base, Candidate, CycleFailed, StepContext
from tunefleet.campaign.object_store import endpoint_of
from tunefleet.integrations.publishing.hub import look
from tunefleet.integrations.publishing.targets import PublishOptions, Target, target
from tunefleet.settings import CampaignSettings, PublishSettings, load
from tunefleet.spec.documents.campaign_document import GRADIENTS, CampaignSpec

NONE: Final = "none"
_CYCLE: Final = "{cycle}"
# Characters that the Hub does not allow in names.
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._-]+|--+|\.\.+")
_LONGEST: Final = 80
HUB: Final = "hf://"


def place(
    name: str, spec: CampaignSpec, settings: CampaignSettings, provider: str, *, there: bool | None = None
) -> str:
    """Return the publish target: the campaign's, else one that its provider can fetch from, else `none`."""
    if "to" in spec.publish.model_fields_set or provider != GRADIENTS or settings.hf_username is None:
        return spec.publish.to
    if on_runpod(spec, settings) if there is None else there:
        return NONE  # the merge job uploads it to the Hub
    # One repository per cycle: a later model in the same one would overwrite the one that a rollback returns to.
    return f"{HUB}{settings.hf_username}/{_NOT_ALLOWED.sub('-', name)[:_LONGEST].strip('-.') or 'campaign'}-{_CYCLE}"


def on_runpod(spec: CampaignSpec, settings: CampaignSettings) -> bool:
    """Return whether RunPod merges, and uploads the result to the Hub."""
    return (spec.merge.on or ("runpod" if settings.use_runpod else "fleet")) == "runpod"


def place_of(context: StepContext, *, there: bool | None = None) -> str | None:
    """Return the publish target of this cycle's model, if it is promoted; None for none."""
    to = place(context.state.name, context.spec, context.settings, context.provider.name, there=there)
    to = to.replace(_CYCLE, str(context.state.number))
    return None if to == NONE else to.rstrip("/") if to.startswith(HUB) else to


async def check(context: StepContext, to: str) -> None:
    """Check that a target is writable, and contains nothing that this campaign has not published.

    Raises:
        ConflictError: If something else is there.
        ForbiddenError: If there is no key, or it may not write.
        InputError: If the target is not valid.
        UnreachableError: If the target does not respond.
    """
    own = bool(await context.repository.published(context.state, to))
    await asyncio.to_thread((await opened(context, to, force=own)).check)


async def opened(context: StepContext, to: str, *, force: bool = True) -> Target:
    """Open a publish target with the campaign's keys."""
    wishes = PublishOptions(private=context.spec.publish.private and to.startswith(HUB), force=force)
    return await asyncio.to_thread(target, to, wishes, keys(context.settings))


async def fetch(context: StepContext, artifact_id: str, folder: Path) -> Path:
    """Download an artifact of our server with progress, and return its path."""
    async with progress.counted(context, "downloading", of=artifact_id) as got:
        return await context.client.artifacts.fetch(artifact_id, folder, on_progress=got.follow)


async def put(context: StepContext, to: str, folder: Path) -> str:
    """Publish a folder with progress, overwriting what is there; returns the location for display.

    Raises:
        ForbiddenError: If there is no key, or it may not write.
        UnreachableError: If the target does not respond.
    """
    place = await opened(context, to)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    async with progress.counted(context, "publishing", size, of=to) as sent:
        return (await asyncio.to_thread(place.put, folder, sent.add)).location


def keys(settings: CampaignSettings) -> PublishSettings:
    """Return the keys for targets: those of the campaigns' object store if configured, else those of AWS."""
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


def repo_of(base: Base, service: str) -> str:
    """Return the Hub id of a model."""
    if base.url is not None and base.url.startswith(HUB):
        return base.url.removeprefix(HUB)
    if base.version is None and base.digest is None and ":" not in base.repo:
        return base.repo
    raise CycleFailed(
        f"{service} fetches models from the Hub, but {base.repo} is not there.",
        hint="Publish promoted models to the Hub (publish.to: hf://ORG/NAME), or use your own workers.",
    )


async def with_form(candidate: Candidate, keys: PublishSettings) -> Candidate:
    """Return a candidate with its form, read from its repository if the provider does not report it."""
    if candidate.form is not None:
        return candidate
    found = await asyncio.to_thread(look, candidate.ref, keys)
    if found is None:
        # A missing repository fails at the evaluation.
        return replace(candidate, form="adapter")
    # Pinned to the commit: what is evaluated is what is merged, even if the repository changes later.
    if found.is_adapter:
        return replace(candidate, form="adapter", revision=found.commit)
    fault = None if found.is_safe else f"{candidate.ref} has no safetensors weights; other formats are not published"
    return replace(candidate, form="model", revision=found.commit, fault=fault)
