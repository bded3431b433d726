"""What the hub calls a model, for those who fetch models only from there."""

from __future__ import annotations

from typing import Final

from tunefleet.campaign.contract import Base, CycleFailed

HUB: Final = "hf://"


def repo_of(base: Base, who: str) -> str:
    """Return what the hub calls a model.

    Args:
        base: The model.
        who: Fetches it.

    Raises:
        CycleFailed: If it is not there.
    """
    if base.url is not None and base.url.startswith(HUB):
        return base.url.removeprefix(HUB)
    if base.version is None and base.digest is None and ":" not in base.repo:
        return base.repo
    raise CycleFailed(
        f"{who} fetches models from the hub, and {base.repo} is not there.",
        hint="Publish what is promoted to the hub (publish.to: hf://ORG/NAME), or let your own workers do it.",
    )
