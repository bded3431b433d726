"""Settings changed through the server, stored in `<results>/.worker/changes.json`; they override the environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from tunefleet.errors import InputError
from tunefleet.settings import WorkerSettings, load
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.worker.state import StateFolder

# Only how much a worker does; not which server it trusts, where it writes, or whether it runs custom code.
CHANGEABLE: Final = ("job_slots", "light_slots", "tags", "log_level")


def write(state: StateFolder, data: Mapping[str, Any]) -> None:
    """Validate and store changes; None removes one.

    Raises:
        InputError: If a setting cannot be changed, or there is none.
        MachineError: If a value is invalid.
    """
    if not data:
        raise InputError("update-config needs a setting.", hint=f"Settings: {', '.join(CHANGEABLE)}.")
    unknown = sorted(set(data) - set(CHANGEABLE))
    if unknown:
        raise InputError(f"{unknown[0]} cannot be changed remotely.", hint=f"Allowed: {', '.join(CHANGEABLE)}.")
    merged = {**read(state), **data}
    wanted = {name: value for name, value in merged.items() if value is not None}
    _checked(None, wanted)
    write_json(state.root / "changes.json", wanted, mode=0o600, sync=True)


def read(state: StateFolder) -> dict[str, Any]:
    """Return the stored changes."""
    return read_json(state.root / "changes.json") or {}


def applied(settings: WorkerSettings, state: StateFolder) -> WorkerSettings:
    """Return the settings with the stored changes, and set the log level."""
    changed = _checked(settings, read(state))
    logging.getLogger().setLevel(changed.log_level.upper())
    return changed


def _checked(settings: WorkerSettings | None, changes: Mapping[str, Any]) -> WorkerSettings:
    level = changes.get("log_level")
    if level is not None and str(level).upper() not in logging.getLevelNamesMapping():
        raise InputError(f"log_level={level!r} is not a log level.", hint="Use DEBUG, INFO, WARNING or ERROR.")
    return load(WorkerSettings, **{**(dict(settings) if settings is not None else {}), **changes})


ValueT = TypeVar("ValueT")


class ChangeDetector(Generic[ValueT]):
    """Detects changes of a value since its creation."""

    def __init__(self, look: Callable[[], ValueT]) -> None:
        self._look = look
        self._seen = look()

    def changed(self) -> bool:
        """Return whether the value has changed since the last call."""
        before, self._seen = self._seen, self._look()
        return self._seen != before
