"""Admin commands of a worker: a fixed set, with no remote shell; and settings that were changed through the server.

The outcome of a command is stored before it is reported, so that a command that is delivered twice, or again after the
restart that it caused, is executed once.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Generic, NoReturn, TypeVar

from tunefleet.client import connection, trust
from tunefleet.errors import InputError, TunefleetError
from tunefleet.observability.logs import TextLines
from tunefleet.runtime import self_upgrade
from tunefleet.schemas.training_protocol.training import AgentVerb
from tunefleet.schemas.worker_link import Capabilities, Command, CommandOutcome
from tunefleet.settings import WorkerSettings, load
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.state import StateFolder

logger = logging.getLogger(__name__)
_REMEMBERED: Final = 50
_LOG_LINES: Final = 300
_PACKAGES: Final = ("tunefleet", "torch", "transformers", "trl", "peft", "accelerate", "datasets")
_RESTARTING: Final = "restarting"
# Only how much a worker does; not which server it trusts, where it writes, or whether it runs custom code.
CHANGEABLE: Final = ("job_slots", "light_slots", "tags", "log_level")


class RecentLog(logging.Handler):
    """Keeps the last lines of the log in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextLines())
        self.lines: deque[str] = deque(maxlen=_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line."""
        self.lines.append(self.format(record))


class AdminCommands:
    """Executes admin commands, one at a time, in its own thread."""

    def __init__(
        self,
        state: StateFolder,
        outbox: Outbox,
        *,
        describe: Callable[[], Capabilities],
        recent: RecentLog,
        stop: Callable[[], None],
    ) -> None:
        self._state = state
        self._file = state.root / "verbs.json"
        self._outbox = outbox
        self._describe = describe
        self._recent = recent
        self._stop = stop
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verbs")
        self.restart_wanted = False
        self._say_restarted()

    def take(self, command: Command) -> None:
        """Start a command; the outcome of one that was executed before is only reported again."""
        done = (read_json(self._file) or {}).get(command.command_id)
        if done is not None and done["state"] != _RESTARTING:
            self._outbox.outcome(CommandOutcome(command_id=command.command_id, **done))
            return
        with self._lock:
            if done is not None or command.command_id in self._under_way:
                return
            self._under_way.add(command.command_id)
        self._pool.submit(self._carry_out, command)

    def close(self) -> None:
        """Start no more commands."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _carry_out(self, command: Command) -> None:
        logger.info("Executing admin command %s.", command.command)
        try:
            found = self._do(command)
        except (TunefleetError, OSError) as error:
            self._end(command, state="failed", message=str(error))
        except Exception as error:
            logger.exception("Admin command %s failed.", command.command)
            self._end(command, state="failed", message=f"{type(error).__name__}: {error}")
        else:
            if found is None:
                self._restart(command)
            else:
                self._end(command, state="applied", message="Collected.", result=found)

    def _do(self, command: Command) -> dict[str, Any] | None:
        """Execute a command and return its result; None if the worker must restart for it."""
        match command.command:
            case AgentVerb.RESTART:
                return None
            case AgentVerb.UPDATE_CONFIG:
                _write_changes(self._state, command.data)
                return None
            case AgentVerb.COLLECT_DIAGNOSTICS:
                return self._diagnose()
            case AgentVerb.UPGRADE:
                self_upgrade.upgrade(
                    command.data.get("version"), who="worker", ask=connection.text_at, ca_file=trust.ca_file()
                )
                return None
            case _:
                raise InputError(f"Unknown command {command.command!r}. Commands: {', '.join(AgentVerb)}.")

    def _diagnose(self) -> dict[str, Any]:
        return {
            "worker": self._describe().model_dump(mode="json"),
            "pid": os.getpid(),
            "python": sys.version,
            "executable": sys.executable,
            "packages": {name: _version(name) for name in _PACKAGES},
            "changes": _read_changes(self._state),
            "held": [
                {"task": record.offer.task_id, "attempt": record.offer.attempt, "launch": record.launch}
                for record in self._state.attempts()
            ],
            "log": list(self._recent.lines),
        }

    def _restart(self, command: Command) -> None:
        # Stored before the restart: the next process reports the outcome from it.
        self._remember(command.command_id, {"state": _RESTARTING})
        self.restart_wanted = True
        self._stop()

    def _end(self, command: Command, **outcome: Any) -> None:
        self._remember(command.command_id, outcome)
        self._outbox.outcome(CommandOutcome(command_id=command.command_id, **outcome))

    def _say_restarted(self) -> None:
        for command_id, done in (read_json(self._file) or {}).items():
            if done["state"] == _RESTARTING:
                outcome = {"state": "applied", "message": f"Restarted as process {os.getpid()}."}
                self._remember(command_id, outcome)
                self._outbox.outcome(CommandOutcome.model_validate({"command_id": command_id, **outcome}))

    def _remember(self, command_id: str, outcome: dict[str, Any]) -> None:
        known = {**(read_json(self._file) or {}), command_id: outcome}
        write_json(self._file, dict(list(known.items())[-_REMEMBERED:]), mode=0o600, sync=True)


def exec_self() -> NoReturn:
    """Restart this program with the same command line, environment and pid."""
    # exec, not a child process: a service manager keeps track of the pid.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _write_changes(state: StateFolder, data: Mapping[str, Any]) -> None:
    """Validate and store changes; None removes one."""
    if not data:
        raise InputError("update-config needs a setting.", hint=f"Settings: {', '.join(CHANGEABLE)}.")
    unknown = sorted(set(data) - set(CHANGEABLE))
    if unknown:
        raise InputError(f"{unknown[0]} cannot be changed remotely.", hint=f"Allowed: {', '.join(CHANGEABLE)}.")
    merged = {**_read_changes(state), **data}
    wanted = {name: value for name, value in merged.items() if value is not None}
    _checked(None, wanted)
    write_json(state.root / "changes.json", wanted, mode=0o600, sync=True)


def _read_changes(state: StateFolder) -> dict[str, Any]:
    """Return the stored changes."""
    return read_json(state.root / "changes.json") or {}


def apply_changes(settings: WorkerSettings, state: StateFolder) -> WorkerSettings:
    """Return the settings with the stored changes, and set the log level."""
    changed = _checked(settings, _read_changes(state))
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
