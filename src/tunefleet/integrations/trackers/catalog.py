"""Trackers by name: built-in ones, and those of installed packages (entry point group `tunefleet.trackers`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Final

from tunefleet import errors
from tunefleet.errors import InputError, MachineError, TunefleetError
from tunefleet.integrations.trackers.contract import Tracker
from tunefleet.settings import TrackingSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

GROUP: Final = "tunefleet.trackers"
WANDB: Final = "wandb"
_OURS: Final = {
    WANDB: "tunefleet.integrations.trackers.on_wandb:make",
    "mlflow": "tunefleet.integrations.trackers.on_mlflow:make",
    "trackio": "tunefleet.integrations.trackers.on_trackio:make",
}
"""Built-in trackers by the name of their library."""
_WITHOUT: Final = "Or set `tracking: none` in the campaign."
MakeTracker = Callable[[TrackingSettings], Tracker]
"""Type of an entry point."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The trackers of a campaign, and the reason."""

    names: tuple[str, ...]
    why: str


def chosen(spec: CampaignSpec, settings: TrackingSettings) -> Choice:
    """Return a campaign's trackers: those it names, else `wandb` if it is configured, else none."""
    if spec.tracking is not None:
        return Choice(tuple(dict.fromkeys(spec.tracking)), "set in the campaign")
    if spec.wandb_project is None:
        return Choice((), "no wandb_project is set")
    if settings.wandb_mode == "disabled":
        return Choice((), "WANDB_MODE is disabled")
    if settings.wandb_offline:
        return Choice((WANDB,), f"wandb_project is set, and WANDB_MODE is {settings.wandb_mode}")
    if settings.wandb_key is not None:
        return Choice((WANDB,), "wandb_project and WANDB_API_KEY are set")
    return Choice((), "neither WANDB_API_KEY nor WANDB_MODE=offline is set")


def sentence(choice: Choice) -> str:
    """Return where a campaign is tracked, and why: `by wandb: set in the campaign`."""
    by = f"by {' and '.join(choice.names)}" if choice.names else "nowhere"
    return f"{by}: {choice.why}"


def faults(choice: Choice, settings: TrackingSettings) -> list[TunefleetError]:
    """Return the configuration errors of trackers, one per unusable tracker."""
    found = []
    for name in choice.names:
        try:
            check(name, settings)
        except TunefleetError as error:
            found.append(error)
    return found


def refuse_faults(specs: Iterable[CampaignSpec], settings: TrackingSettings) -> None:
    """Refuse campaigns with trackers that are not usable on this machine.

    Raises:
        InputError: If there is one; lists all of them.
    """
    choices = [chosen(spec, settings) for spec in specs if spec.enabled]
    found = {error.message: error.hint for choice in choices for error in faults(choice, settings)}
    if found:
        raise InputError(" ".join(found), hint=" ".join(dict.fromkeys(hint for hint in found.values() if hint)))


def check(name: str, settings: TrackingSettings) -> Tracker:
    """Return a tracker that is usable on this machine; its library is not imported yet."""
    found = tracker(name, settings)
    fault = found.fault()
    if fault is not None:
        raise InputError(f"The tracker {name} is not usable: {fault}", hint=_WITHOUT)
    if name in _OURS and not _replaced(name) and find_spec(name) is None:
        raise MachineError(
            f"The tracker {name} is not installed.", hint=f"Run `{errors.install_command('trackers')}`. {_WITHOUT}"
        )
    return found


def tracker(name: str, settings: TrackingSettings) -> Tracker:
    """Return a tracker; an installed one replaces a built-in one of the same name. Its library is not imported yet.

    Raises:
        MachineError: If it cannot be loaded.
    """
    points = _replaced(name)
    try:
        if points:
            make: MakeTracker = points[0].load()
            return make(settings)
        if name in _OURS:
            module, _, attribute = _OURS[name].partition(":")
            ours: MakeTracker = getattr(import_module(module), attribute)
            return ours(settings)
    except ImportError as error:
        raise MachineError(f"Cannot load the tracker {name}: {error}.", hint="Install its dependencies.") from error
    raise InputError(f"Unknown tracker {name!r}.", hint=f"Available trackers: {', '.join(names())}, none.")


def names() -> list[str]:
    """Return the names of all available trackers."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=GROUP))})


def _replaced(name: str) -> Sequence[EntryPoint]:
    return list(entry_points(group=GROUP, name=name))
