"""How a process reads its settings: once, at its start."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from tunefleet.errors import MachineError
from tunefleet.settings.agent import AgentSettings
from tunefleet.settings.base import ProcessSettings

S = TypeVar("S", bound=ProcessSettings)


def load(cls: type[S], **overrides: Any) -> S:
    """Build the settings of a process from its environment and explicit overrides.

    Args:
        cls: Which process.
        overrides: Values from the command line, by field name; `None` means "not given".

    Raises:
        MachineError: If a value is unusable; the message names the variable and the value.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return cls(**given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in error.errors())
        raise MachineError(f"A setting cannot be used: {faults}.", hint="Mend the variable or the option.") from None


def load_agent(**overrides: Any) -> AgentSettings:
    """Build the agent's settings: environment, then `.env`, then `agent.env` in `TUNEFLEET_HOME`.

    Args:
        overrides: Values by field name; `None` means "not given".

    Raises:
        MachineError: If a value is unusable.
    """
    files = (load(ProcessSettings).home_dir / "agent.env", ".env")  # of two files the later one counts
    return load(AgentSettings, _env_file=files, **overrides)
