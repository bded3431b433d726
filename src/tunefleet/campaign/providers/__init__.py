"""Training providers by name: built-in ones and those of installed packages (entry points `tunefleet.providers`)."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tunefleet.campaign.contract import MakeProvider
from tunefleet.errors import InputError, MachineError
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import GRADIENTS, LOCAL, CampaignSpec

GROUP: Final = "tunefleet.providers"
_BUILT_IN: Final = {
    LOCAL: "tunefleet.campaign.providers.local:make",
    GRADIENTS: "tunefleet.campaign.providers.gradients:make",
}


def chosen(spec: CampaignSpec, settings: CampaignSettings) -> tuple[str, str]:
    """Return the provider of a campaign, and why."""
    if spec.provider is not None:
        return spec.provider, "set by the campaign"
    if settings.gradients_key is not None:
        return GRADIENTS, "GRADIENTS_API_KEY is set"
    return LOCAL, "GRADIENTS_API_KEY is not set"


def names() -> list[str]:
    """Return the names of all installed providers."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def find(name: str) -> MakeProvider:
    """Return the factory of a provider; an installed one overrides a built-in one of the same name.

    Raises:
        MachineError: If the provider cannot be loaded.
    """
    points: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    try:
        if points:
            made: MakeProvider = points[0].load()
            return made
        if name in _BUILT_IN:
            module, _, attribute = _BUILT_IN[name].partition(":")
            ours: MakeProvider = getattr(import_module(module), attribute)
            return ours
    except ImportError as error:
        raise MachineError(
            f"The provider {name} cannot be loaded: {error}.", hint="Install its dependencies."
        ) from error
    raise InputError(f"Unknown provider {name!r}.", hint=f"Available: {', '.join(names())}.")
