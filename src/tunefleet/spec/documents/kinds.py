"""All task types: those of Tunefleet, and those of installed plugins.

A plugin registers the spec of a task type under the entry point group `tunefleet.kinds`. It must be installed wherever
workflows are validated: on the server and on the submitting machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Final

from tunefleet.spec.documents.refused_keys import REFUSED_KINDS
from tunefleet.spec.tasks.base_task import BaseTaskSpec
from tunefleet.spec.tasks.task_types import TASK_KINDS
from tunefleet.spec.value_preview import nearest

logger = logging.getLogger(__name__)

GROUP: Final = "tunefleet.kinds"


@cache
def task_kinds() -> Mapping[str, type[BaseTaskSpec]]:
    """Return task type → its spec class. Cached: plugins that are installed later require a restart."""
    # Not at import: a plugin's spec imports this package, which would then be only partially initialized.
    return MappingProxyType({**TASK_KINDS, **_plugin_kinds()})


def nearest_kind(name: object) -> str | None:
    """Return the task type that was probably meant; `None` if no single one is close."""
    if not isinstance(name, str):
        return None
    guess = name if name in task_kinds() else nearest(name, [*task_kinds(), *REFUSED_KINDS])
    return guess if guess in task_kinds() else None


def _plugin_kinds() -> dict[str, type[BaseTaskSpec]]:
    found: dict[str, type[BaseTaskSpec]] = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = _checked(point.name, point.load())
        except Exception as error:  # noqa: BLE001 -- a faulty plugin must not stop the server
            logger.warning("The task type %s (%s) is not available: %s", point.name, point.value, error)
    return found


def _checked(name: str, spec: object) -> type[BaseTaskSpec]:
    # A plugin must not change the meaning of an existing task type.
    if name in TASK_KINDS or name in REFUSED_KINDS:
        raise ValueError(f"{name} is already in use")
    if not (isinstance(spec, type) and issubclass(spec, BaseTaskSpec)):
        raise TypeError("it is not a subclass of tunefleet.spec.BaseTaskSpec")
    if spec.model_fields["task_type"].default != name:
        raise ValueError(f"the default of its task_type is not {name!r}")
    return spec
