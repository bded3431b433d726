"""Who trains, by name: ours, and those of installed packages (entry point group `tunefleet.providers`)."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tunefleet.campaign.contract import MakeProvider
from tunefleet.errors import InputError, MachineError
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import GRADIENTS, LOCAL, CampaignSpec

GROUP: Final = "tunefleet.providers"
_OURS: Final = {
    LOCAL: "tunefleet.campaign.providers.local:make",
    GRADIENTS: "tunefleet.campaign.providers.gradients:make",
}


def chosen(spec: CampaignSpec, settings: CampaignSettings) -> tuple[str, str]:
    """Return which provider a campaign has, and why."""
    if spec.provider is not None:
        return spec.provider, "the campaign says so"
    if settings.gradients_key is not None:
        return GRADIENTS, "GRADIENTS_API_KEY is set"
    return LOCAL, "GRADIENTS_API_KEY is not set"


def names() -> list[str]:
    """Return the names of all providers that are installed."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=GROUP))})


def find(name: str) -> MakeProvider:
    """Return what makes a provider; an installed one takes the place of ours of the same name.

    Raises:
        MachineError: If it cannot be loaded.
    """
    points: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    try:
        if points:
            made: MakeProvider = points[0].load()
            return made
        if name in _OURS:
            module, _, attribute = _OURS[name].partition(":")
            ours: MakeProvider = getattr(import_module(module), attribute)
            return ours
    except ImportError as error:
        raise MachineError(f"The provider {name} cannot be loaded: {error}.", hint="Install what it needs.") from error
    raise InputError(f"There is no provider {name!r}.", hint=f"There is {', '.join(names())}.")
