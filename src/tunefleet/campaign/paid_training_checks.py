"""Checks before a task is paid for at Gradients, which has no access to our fleet.

Gradients fetches rows by links that cannot be renewed, and models only from the Hub. So links must outlive the task,
and promoted models must be published to the Hub: otherwise no later task could start from them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tunefleet.campaign import publish_targets
from tunefleet.campaign.contract import Base, CycleFailed, Misconfigured, NeedsYou, StepContext
from tunefleet.campaign.object_store import LINK_S
from tunefleet.campaign.publish_targets import HUB, repo_of
from tunefleet.integrations.publishing.hub import is_public
from tunefleet.settings import CampaignSettings, PublishSettings, load
from tunefleet.spec.documents.campaign_document import GRADIENTS, CampaignSpec

# Margin on top of a task's training time: it waits for trainers first, and is evaluated last.
MARGIN_S: Final = 86_400.0
_NAME: Final = "Gradients"
_HOUR_S: Final = 3600.0


def faults(name: str, spec: CampaignSpec, settings: CampaignSettings, provider: str) -> list[tuple[str, str]]:
    """Return the problems that prevent training at the provider, each with a fix."""
    if provider != GRADIENTS:
        return []
    found = []
    try:
        repo_of(Base(repo=spec.model_repo, digest=spec.inputs.get("model_repo")), _NAME)
    except CycleFailed as error:
        found.append((error.message, "Set model_repo to a model from the Hub, or set provider: local."))
    to = publish_targets.place(name, spec, settings, provider)
    if not to.startswith(HUB) and not publish_targets.on_runpod(spec, settings):
        found.append((
            f"{_NAME} starts tasks from models on the Hub, and publish.to is {to}: no promoted model is there.",
            "Set TUNEFLEET_HF_USERNAME and HF_TOKEN, or set publish.to: hf://ORG/NAME-{cycle}.",
        ))  # fmt: skip
    longest = (LINK_S - MARGIN_S) / _HOUR_S
    if spec.hours_to_complete > longest:
        found.append((
            f"hours_to_complete is {spec.hours_to_complete:g}, and a link to the rows is valid for "
            f"{LINK_S / _HOUR_S:g} hours: it might expire before the task ends, and {_NAME} accepts no new link.",
            f"Set it to {longest:g} or less.",
        ))  # fmt: skip
    return found


def doubts(name: str, spec: CampaignSpec, settings: CampaignSettings, provider: str) -> list[str]:
    """Return what will block a campaign after its first promoted model; arguments as for `faults`."""
    to = publish_targets.place(name, spec, settings, provider)
    if provider != GRADIENTS or not to.startswith(HUB) or not spec.publish.private:
        return []
    return [
        f"{_NAME} reads public repositories only, and {to} will be private: tasks that start from a promoted model "
        "are ordered once its repository is public (`publish.private: false` creates public ones)."
    ]


def check(context: StepContext) -> None:
    """Check that later cycles can use what this cycle pays for.

    Raises:
        Misconfigured: If they cannot.
    """
    found = faults(context.state.name, context.spec, context.settings, context.provider.name)
    if found:
        raise Misconfigured(" ".join(message for message, _ in found), hint=" ".join(hint for _, hint in found))


async def check_base(context: StepContext, base: Base) -> None:
    """Check that the Hub has the order's base model, and not another version in its repository.

    Raises:
        UnreachableError: If the Hub does not respond.
    """
    if context.provider.name != GRADIENTS:
        return
    url = HUB + repo_of(base, _NAME)
    if base.version is None:
        return
    newest = max(await context.repository.published(context.state, url), default=base.version)
    if newest > base.version:
        raise NeedsYou(
            f"{url} now has version {newest}, but version {base.version} is promoted: {_NAME} would start from the "
            "wrong one.",
            hint=f"Promote a version that is alone in its repository (`tunefleet models promote "
            f"{context.state.name} {newest}`), and set publish.to to a name with {{cycle}}.",
        )
    if not await asyncio.to_thread(is_public, url.removeprefix(HUB), load(PublishSettings).hf_endpoint):
        raise NeedsYou(
            f"{_NAME} reads public repositories only, and {url} is not public.",
            hint="Make it public on the Hub; `publish.private: false` creates public ones.",
        )
