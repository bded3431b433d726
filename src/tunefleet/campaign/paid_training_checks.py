"""What must hold before a task is paid for at Gradients, which knows nothing of our fleet.

It fetches rows by links that cannot be renewed, and models from the hub alone. So the links must outlive the task, and
whatever is promoted must get to the hub: else no task could begin with it, and what was paid for would lead nowhere.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tunefleet.campaign import publish_targets
from tunefleet.campaign.contract import Base, CycleFailed, Misconfigured, NeedsYou, StepContext
from tunefleet.campaign.hub_models import HUB, repo_of
from tunefleet.campaign.object_store import LINK_S
from tunefleet.integrations.publishing.hub import is_public
from tunefleet.settings import CampaignSettings, PublishSettings, load
from tunefleet.spec.documents.campaign_document import GRADIENTS, CampaignSpec

# How much longer than it takes a task may be under way: it waits for trainers first, and is judged last.
MARGIN_S: Final = 86_400.0
_NAME: Final = "Gradients"
_HOUR_S: Final = 3600.0


def faults(name: str, spec: CampaignSpec, settings: CampaignSettings, provider: str) -> list[tuple[str, str]]:
    """Return what keeps a campaign from being trained at its provider, each with the way out."""
    if provider != GRADIENTS:
        return []
    found = []
    try:
        repo_of(Base(repo=spec.model_repo, digest=spec.inputs.get("model_repo")), _NAME)
    except CycleFailed as error:
        found.append((error.message, "Name a model of the hub as model_repo, or write provider: local."))
    to = publish_targets.place(name, spec, settings, provider)
    if not to.startswith(HUB) and not publish_targets.on_runpod(spec, settings):
        found.append((
            f"{_NAME} begins a task with a model of the hub, and publish.to is {to}: no promoted model gets there.",
            "Set HF_USERNAME and HF_TOKEN, or write publish.to: hf://ORG/NAME-{cycle}.",
        ))  # fmt: skip
    longest = (LINK_S - MARGIN_S) / _HOUR_S
    if spec.hours_to_complete > longest:
        found.append((
            f"hours_to_complete is {spec.hours_to_complete:g}, and a link to the rows is good for "
            f"{LINK_S / _HOUR_S:g} hours: it might end before the task, and {_NAME} takes no other.",
            f"Write {longest:g} at most.",
        ))  # fmt: skip
    return found


def doubts(name: str, spec: CampaignSpec, settings: CampaignSettings, provider: str) -> list[str]:
    """Return what will keep a campaign from going on after its first promoted model; arguments as of `faults`."""
    to = publish_targets.place(name, spec, settings, provider)
    if provider != GRADIENTS or not to.startswith(HUB) or not spec.publish.private:
        return []
    return [
        f"{_NAME} reads public repositories only, and {to} will be private: a task that begins with a promoted model "
        "is ordered once its repository is public (publish.private: false makes public ones)."
    ]


def check(context: StepContext) -> None:
    """Look whether what this cycle pays for can be gone on with.

    Raises:
        Misconfigured: If not.
    """
    found = faults(context.state.name, context.spec, context.settings, context.provider.name)
    if found:
        raise Misconfigured(" ".join(message for message, _ in found), hint=" ".join(hint for _, hint in found))


async def check_base(context: StepContext, base: Base) -> None:
    """Look whether the hub has what an order begins with, and not another version in its place.

    Raises:
        UnreachableError: If the hub does not answer.
    """
    if context.provider.name != GRADIENTS:
        return
    url = HUB + repo_of(base, _NAME)
    if base.version is None:
        return
    newest = max(await context.book.published(context.state, url), default=base.version)
    if newest > base.version:
        raise NeedsYou(
            f"{url} holds version {newest} by now, and version {base.version} is promoted: {_NAME} would begin with "
            "the wrong one.",
            hint=f"Promote first a version that is alone in its repository (`tunefleet models promote "
            f"{context.state.name} {newest}`), and write publish.to with {{cycle}} in it.",
        )
    if not await asyncio.to_thread(is_public, url.removeprefix(HUB), load(PublishSettings).hf_endpoint):
        raise NeedsYou(
            f"{_NAME} reads public repositories only, and {url} is none.",
            hint="Make it public there first; publish.private: false makes public ones.",
        )
