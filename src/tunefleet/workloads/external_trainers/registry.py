"""Available trainers: built-in ones, plugins, and functions named in a workflow file."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tunefleet.errors import InputError
from tunefleet.spec.options.trainer import OURS, is_function
from tunefleet.workloads.external_trainers.launch_plan import Trainer

GROUP: Final = "tunefleet.trainers"
_BUILT_IN: Final = {
    name: f"tunefleet.workloads.external_trainers.{name}:plan" for name in ("axolotl", "llamafactory", "unsloth")
}


def find(name: str, points: Iterable[EntryPoint] | None = None) -> Trainer:
    """Return a trainer."""
    if is_function(name):
        return _load(name, name)
    # Built-in names first: a plugin must not replace one.
    if name in _BUILT_IN:
        return _load(name, _BUILT_IN[name])
    installed = plugins(points)
    if name not in installed:
        known = ", ".join([OURS, *_BUILT_IN, *sorted(installed)])
        raise InputError(
            f"There is no trainer {name!r} on this worker.", hint=f"Available: {known}; or name module:function."
        )
    return _load(name, installed[name])


def plugins(points: Iterable[EntryPoint] | None = None) -> dict[str, str]:
    """Return the trainers of installed packages: name → `module:function`. Does not import them."""
    return {point.name: point.value for point in (entry_points(group=GROUP) if points is None else points)}


def _load(name: str, value: str) -> Trainer:
    module, _, attribute = value.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"The trainer {name} cannot be loaded: {error}.",
            hint="The module must be installed on the worker or be on its PYTHONPATH.",
        ) from error
    if not callable(found):
        raise InputError(f"The trainer {name} is not a function.", hint="Name a function from Request to Plan.")
    trainer: Trainer = found
    return trainer
