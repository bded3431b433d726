"""Settings that the server has changed: `<results>/.worker/changes.json`; they stand above the environment.

How much a worker does may be changed from afar; not whom it trusts, where it writes, or whether it runs code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from tunefleet.errors import InputError
from tunefleet.settings import WorkerSettings, load
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.worker.state import StateFolder

CHANGEABLE: Final = ("job_slots", "light_slots", "tags", "log_level")


def write(state: StateFolder, data: Mapping[str, Any]) -> None:
    """Write changes down, checked; null takes one back.

    Raises:
        MachineError: If a value cannot be used.
    """
    if not data:
        raise InputError("update-config needs a setting.", hint=f"There are: {', '.join(CHANGEABLE)}.")
    unknown = sorted(set(data) - set(CHANGEABLE))
    if unknown:
        raise InputError(f"{unknown[0]} cannot be changed from afar.", hint=f"Those can: {', '.join(CHANGEABLE)}.")
    merged = {**read(state), **data}
    wanted = {name: value for name, value in merged.items() if value is not None}
    _checked(None, wanted)
    write_json(state.root / "changes.json", wanted, mode=0o600, sync=True)


def read(state: StateFolder) -> dict[str, Any]:
    """Return the changes."""
    return read_json(state.root / "changes.json") or {}


def applied(settings: WorkerSettings, state: StateFolder) -> WorkerSettings:
    """Return the settings with the changes."""
    found = _checked(settings, read(state))
    logging.getLogger().setLevel(found.log_level.upper())
    return found


def _checked(settings: WorkerSettings | None, changes: Mapping[str, Any]) -> WorkerSettings:
    level = changes.get("log_level")
    if level is not None and str(level).upper() not in logging.getLevelNamesMapping():
        raise InputError(f"log_level={level!r} is no level.", hint="Use DEBUG, INFO, WARNING or ERROR.")
    return load(WorkerSettings, **{**(dict(settings) if settings is not None else {}), **changes})


FoundT = TypeVar("FoundT")


class Noticed(Generic[FoundT]):
    """Notices what was fetched, made or removed, from its making on."""

    def __init__(self, look: Callable[[], FoundT]) -> None:
        self._look = look
        self._seen = look()

    def changed(self) -> bool:
        """Whether there is something else than at the last look."""
        before, self._seen = self._seen, self._look()
        return self._seen != before
