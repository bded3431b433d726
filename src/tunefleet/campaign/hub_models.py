"""What the hub calls a model, for those who fetch models only from there; and what a model there is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from tunefleet.campaign.contract import Base, Candidate, CycleFailed
from tunefleet.integrations.publishing.hub import look
from tunefleet.settings import PublishSettings

HUB: Final = "hf://"


def repo_of(base: Base, who: str) -> str:
    """Return what the hub calls a model."""
    if base.url is not None and base.url.startswith(HUB):
        return base.url.removeprefix(HUB)
    if base.version is None and base.digest is None and ":" not in base.repo:
        return base.repo
    raise CycleFailed(
        f"{who} fetches models from the hub, and {base.repo} is not there.",
        hint="Publish what is promoted to the hub (publish.to: hf://ORG/NAME), or let your own workers do it.",
    )


async def told_apart(candidate: Candidate, keys: PublishSettings) -> Candidate:
    """Return a candidate with its form, which its repository tells where the provider does not."""
    if candidate.form is not None:
        return candidate
    found = await asyncio.to_thread(look, candidate.ref, keys)
    if found is None:
        # One that is not there is none: its evaluation says so.
        return replace(candidate, form="adapter")
    # What is measured is what is merged and taken, whatever its owner puts there later.
    if found.is_adapter:
        return replace(candidate, form="adapter", revision=found.commit)
    fault = None if found.is_safe else f"{candidate.ref} has no weights as safetensors, and no others are passed on"
    return replace(candidate, form="model", revision=found.commit, fault=fault)
