"""Admin commands of an agent: a fixed set, with no remote shell."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from tunefleet.agent.agent import Agent
from tunefleet.agent.capabilities import diagnose
from tunefleet.client import connection, trust
from tunefleet.errors import ConflictError, InputError, TunefleetError
from tunefleet.fsutil import write_private
from tunefleet.runtime import self_upgrade
from tunefleet.schemas.training_protocol.training import AgentCommand, AgentOutcome, AgentVerb
from tunefleet.settings import AgentSettings, load_agent

logger = logging.getLogger(__name__)

# Variable -> field that `update-config` may change: how many jobs run and how often they report, but not where the
# agent listens, which backend it trusts, or which folders it reads.
CHANGEABLE: Final[dict[str, str]] = {
    "POLL_INTERVAL_SECONDS": "poll_interval_s",
    "MAX_CONCURRENT_JOBS": "max_jobs",
    "GPU_MEMORY_FRACTION": "gpu_memory_fraction",
    "ENABLE_MIXED_PRECISION": "mixed_precision",
    "CHECKPOINT_INTERVAL_STEPS": "checkpoint_interval_steps",
    "METRICS_REPORT_INTERVAL_STEPS": "metrics_interval_steps",
    "GPU_MONITORING_INTERVAL_SECONDS": "gpu_interval_s",
    "HEARTBEAT_INTERVAL_SECONDS": "heartbeat_interval_s",
    "LOG_LEVEL": "log_level",
}
_FIELDS: Final = {each: field for name, field in CHANGEABLE.items() for each in AgentSettings.names_of(name)}
_LOG_LINES: Final = 200


class AdminCommands:
    """Executes admin commands."""

    def __init__(self, agent: Agent, restart: Callable[[], None]) -> None:
        self._agent = agent
        self._restart = restart

    def __call__(self, command: AgentCommand) -> AgentOutcome:
        """Execute one command.

        Raises:
            TunefleetError: If it fails; the message is for the user.
        """
        match command.command:
            case AgentVerb.RESTART:
                self._restart()
                data: dict[str, Any] = {}
                message = "The agent restarts; its jobs keep running."
            case AgentVerb.UPDATE_CONFIG:
                message, data = self._update(command.data)
            case AgentVerb.COLLECT_DIAGNOSTICS:
                message, data = "Collected.", self._diagnose()
            case AgentVerb.UPGRADE:
                message, data = self._upgrade(command.data)
            case _:
                raise InputError(f"Unknown command {command.command}.", hint=f"Commands: {', '.join(AgentVerb)}.")
        return AgentOutcome(command_id=command.command_id, state="applied", message=message, data=data)

    def _update(self, data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        wishes = data.get("settings", data)
        if not isinstance(wishes, Mapping) or not wishes:
            raise InputError("update-config takes settings, such as {'MAX_CONCURRENT_JOBS': 2}.")
        if unknown := sorted(set(wishes) - _FIELDS.keys()):
            raise InputError(
                f"{', '.join(unknown)} cannot be changed remotely.", hint=f"Settings that can: {', '.join(CHANGEABLE)}."
            )
        wanted = load_agent(**{_FIELDS[name]: value for name, value in wishes.items()})
        self._write(wanted, wishes)
        self._restart()
        return "Saved. The agent restarts; its jobs keep running.", {"settings": dict(wishes)}

    def _write(self, wanted: AgentSettings, wishes: Mapping[str, Any]) -> None:
        path = wanted.env_file
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        replaced = {each for name in wishes for each in AgentSettings.names_of(name)}
        kept = [line for line in before.splitlines() if line.partition("=")[0].strip() not in replaced]
        write_private(path, "\n".join([*kept, *(f"{name}={value}" for name, value in wishes.items())]) + "\n")
        try:
            # Loaded again: a variable of the environment would override the file, and the command have no effect.
            now = load_agent()
            stuck = [name for name in wishes if getattr(now, _FIELDS[name]) != getattr(wanted, _FIELDS[name])]
        except TunefleetError:
            write_private(path, before)
            raise
        if stuck:
            write_private(path, before)
            raise ConflictError(
                f"{', '.join(stuck)} is set in the agent's environment or its .env, which override this setting.",
                hint=f"Move it to {path}.",
            )

    def _diagnose(self) -> dict[str, Any]:
        found = diagnose(self._agent)
        log = self._agent.settings.logs_dir.expanduser() / "agent.log"
        if log.exists():
            found["log"] = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        # Through JSON, so that other types (paths, timestamps) become text.
        serializable: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return serializable

    def _upgrade(self, data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        output = self_upgrade.upgrade(data.get("version"), who="agent", ask=connection.text_at, ca_file=trust.ca_file())
        self._restart()
        return "Upgraded. The agent restarts; its jobs keep running.", {"output": output}
