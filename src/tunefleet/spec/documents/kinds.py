"""The task kinds that there are: those of Tunefleet, and those that installed packages bring.

A package names the spec of a kind of its own under the entry point group `tunefleet.kinds`. It is installed where
documents are checked: with the server, and where they are submitted.
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

logger = logging.getLogger(__name__)

GROUP: Final = "tunefleet.kinds"


@cache
def task_kinds() -> Mapping[str, type[BaseTaskSpec]]:
    """Return kind → what checks a task of it. Looked up once: what is installed later needs a restart."""
    # Not at import: a package's spec imports this package first, which then would find half of it.
    return MappingProxyType({**TASK_KINDS, **_brought()})


def _brought() -> dict[str, type[BaseTaskSpec]]:
    found: dict[str, type[BaseTaskSpec]] = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = _checked(point.name, point.load())
        except Exception as error:  # noqa: BLE001 -- somebody else's package must not end the server
            logger.warning("The task kind %s (%s) is not available: %s", point.name, point.value, error)
    return found


def _checked(name: str, spec: object) -> type[BaseTaskSpec]:
    if name in TASK_KINDS or name in REFUSED_KINDS:
        raise ValueError(f"{name} means something already")
    if not (isinstance(spec, type) and issubclass(spec, BaseTaskSpec)):
        raise TypeError("it is no subclass of tunefleet.spec.BaseTaskSpec")
    if spec.model_fields["task_type"].default != name:
        raise ValueError(f"its task_type has another default than {name!r}")
    return spec
