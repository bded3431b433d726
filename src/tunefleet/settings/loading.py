"""How a process reads its settings: once, at its start."""

from __future__ import annotations

from typing import Any, TypeVar

from dotenv import dotenv_values
from pydantic import ValidationError

from tunefleet.errors import MachineError
from tunefleet.settings.agent import AgentSettings
from tunefleet.settings.base import ProcessSettings
from tunefleet.settings.worker import WorkerSettings

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


def load_worker(**overrides: Any) -> WorkerSettings:
    """Build a worker's settings: options, environment, `.env`; what is missing then as `tunefleet join` has kept it.

    That file, `worker.env` in `TUNEFLEET_HOME`, counts only where neither a key nor a Redis is named elsewhere, and
    its key goes to the server that it was made for.

    Args:
        overrides: Values by field name; `None` means "not given".

    Raises:
        MachineError: If a value is unusable.
    """
    plain = load(WorkerSettings, **overrides)
    file = plain.joined_file
    if plain.key is not None or plain.redis_url is not None or not file.is_file():
        return plain
    joined = load(WorkerSettings, _env_file=(file, ".env"), **overrides)
    return joined if joined.server_url == dotenv_values(file).get("ORCHESTRATOR_BASE_URL") else plain
