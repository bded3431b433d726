"""Hub ids of models, for services that fetch models only from the Hub, and the form of a model there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from tunefleet.campaign.contract import Base, Candidate, CycleFailed
from tunefleet.integrations.publishing.hub import look
from tunefleet.settings import PublishSettings

HUB: Final = "hf://"


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
