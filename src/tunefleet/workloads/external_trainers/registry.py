"""Which trainers there are: those that come with us, those that plugins bring, and functions that a document names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tunefleet.errors import InputError
from tunefleet.spec.options.trainer import OURS, is_function
from tunefleet.workloads.external_trainers.launch_plan import Trainer

GROUP: Final = "tunefleet.trainers"
_HERE: Final = {
    name: f"tunefleet.workloads.external_trainers.{name}:plan" for name in ("axolotl", "llamafactory", "unsloth")
}


def find(name: str, points: Iterable[EntryPoint] | None = None) -> Trainer:
    """Return a trainer."""
    if is_function(name):
        return _function(name, name)
    if name in _HERE:
        return _function(name, _HERE[name])
    brought = plugins(points)
    if name not in brought:
        known = ", ".join([OURS, *_HERE, *sorted(brought)])
        raise InputError(
            f"There is no trainer {name!r} on this worker.", hint=f"It has {known}; or name module:function."
        )
    return _function(name, brought[name])


def plugins(points: Iterable[EntryPoint] | None = None) -> dict[str, str]:
    """Return the trainers that other packages bring: name → `module:function`. Nothing of them is imported."""
    return {point.name: point.value for point in (entry_points(group=GROUP) if points is None else points)}


def _function(name: str, value: str) -> Trainer:
    module, _, attribute = value.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"The trainer {name} cannot be loaded: {error}.",
            hint="The module must be installed on the worker, or lie on its PYTHONPATH.",
        ) from error
    if not callable(found):
        raise InputError(f"The trainer {name} is no function.", hint="Name a function from Request to Plan.")
    trainer: Trainer = found
    return trainer
