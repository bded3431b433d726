"""Loads the settings of a process: once, at its start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from dotenv import dotenv_values
from pydantic import AliasChoices, ValidationError
from pydantic_core import ErrorDetails

from tunefleet.errors import MachineError
from tunefleet.observability.logs import scrub
from tunefleet.settings.agent import AgentSettings
from tunefleet.settings.base import ProcessSettings
from tunefleet.settings.environment import DOTENV, dotenv, dotenv_is_read, first_set, is_set, value_of
from tunefleet.settings.worker import WorkerSettings
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)
ALLOW_CODE: Final = "TUNEFLEET_ALLOW_CODE"
S = TypeVar("S", bound=ProcessSettings)
_FILES: Final = "_env_file"
_MAX_SHOWN: Final = 10
# Settings are loaded several times in a process, and each difference is reported once.
_REPORTED: Final[set[str]] = set()


def load(cls: type[S], **overrides: Any) -> S:
    """Build the settings of a process from its environment and explicit overrides.

    Args:
        overrides: Values from the command line, by field name; `None` means "not given".

    Raises:
        MachineError: If a value is invalid; the message names the variable and the value.
    """
    given = {name: value for name, value in overrides.items() if value is not None or name == _FILES}
    if not dotenv_is_read():
        asked = given.get(_FILES) or ()
        others = tuple(file for file in (asked if isinstance(asked, tuple) else (asked,)) if file != DOTENV)
        given[_FILES] = others or None
    files = given.get(_FILES, cls.model_config.get("env_file"))
    if "allow_code" in cls.model_fields and "allow_code" not in given and (file := _code_allowed_by(files)) is not None:
        logger.warning("%s in .env is ignored: set it in the environment, or use --allow-code.", ALLOW_CODE)
        given["allow_code"] = file
    if DOTENV in (files if isinstance(files, tuple) else (files,)):
        _refuse_unsafe_dotenv(cls, dotenv())
    _report_differing(cls)
    try:
        return cls(**given)
    except ValidationError as error:
        faults = "; ".join(_fault(cls, each) for each in error.errors(include_url=False)[:_MAX_SHOWN])
        # An address may have a password, and this text goes to the log.
        raise MachineError(f"Invalid setting: {scrub(faults)}.", hint="Fix the variable or the option.") from None


def _report_differing(cls: type[ProcessSettings]) -> None:
    """Log a warning, once, for each setting that the environment gives two different values under two names."""
    for field in cls.model_fields.values():
        alias = field.validation_alias
        names = [str(name) for name in alias.choices if is_set(str(name))] if isinstance(alias, AliasChoices) else []
        if len({value_of(name) for name in names}) > 1 and names[0] not in _REPORTED:
            _REPORTED.add(names[0])
            logger.warning("%s and %s are set to different values: %s applies.", *names[:2], names[0])


def _fault(cls: type[ProcessSettings], detail: ErrorDetails) -> str:
    name = _set_name(cls, detail["loc"])
    if detail["type"] == "value_error":
        # A sentence of our own validators, which says neither name nor value.
        return f"{name}={detail['input']!r}: {detail['ctx']['error']}"
    return summary([{**detail, "loc": (name,)}])


def _set_name(cls: type[ProcessSettings], location: tuple[int | str, ...]) -> str:
    """Return the name under which an invalid setting was given."""
    first, *rest = map(str, location)
    name = next((name for name in cls.names_of(first) if is_set(name)), None)
    name = name or next((name for name in cls.names_of(first) if dotenv().get(name)), first)
    return ".".join([name, *rest])


def _refuse_unsafe_dotenv(cls: type[ProcessSettings], values: Mapping[str, str | None]) -> None:
    """Reject a `.env` that redirects a secret of the environment, names a program to run, or refers to variables.

    Raises:
        MachineError: If it does.
    """
    # The file may have come with an unpacked archive, so it is trusted less than the environment.
    referring = next((name for name, value in values.items() if value is not None and "${" in value), None)
    if referring is not None:
        raise MachineError(
            f"{referring} in .env refers to another variable, which is not expanded.", hint="Write the value itself."
        )
    run = next((name for name in cls.programs if values.get(name) and first_set(cls.names_of(name)) is None), None)
    if run is not None:
        raise MachineError(f"{run} in .env names a program to run.", hint=f"Set {run} in the environment.")
    # Each class of the hierarchy declares the addresses of its own fields only.
    pairs = [pair for base in cls.__mro__ for pair in base.__dict__.get("addresses", {}).items()]
    for address, secrets in pairs:
        names = cls.names_of(address)
        given = next((name for name in names if values.get(name)), None) if first_set(names) is None else None
        taken = first_set([name for secret in secrets for name in cls.names_of(secret)]) if given else None
        if taken is not None:
            raise MachineError(
                f"{given} is set in .env, but {taken}, which would be sent there, is set in the environment.",
                hint="Set both in the same place.",
            )


def _code_allowed_by(files: object) -> str | None:
    """Return the setting for custom code without `.env`, if `.env` has it; `None` if it does not."""
    # `.env` may have come with an unpacked archive: it must not allow the archive's own code to run.
    named = files if isinstance(files, tuple) else (files,)
    if DOTENV not in named or not dotenv().get(ALLOW_CODE) or is_set(ALLOW_CODE):
        return None
    others = (dotenv_values(file).get(ALLOW_CODE) for file in named if file is not None and file != DOTENV)
    return next((value for value in others if value), "false")


def _is_placed_by_dotenv(file: Path) -> bool:
    """Whether `.env` chooses where a settings file is; that file is then trusted as little as `.env` and ignored."""
    if not dotenv().get("TUNEFLEET_HOME") or is_set("TUNEFLEET_HOME"):
        return False
    if file.is_file():
        logger.warning("%s is ignored because TUNEFLEET_HOME is set in .env: set it in the environment.", file)
    return True


def load_agent(**overrides: Any) -> AgentSettings:
    """Build the agent's settings: environment, then `.env`, then `agent.env` in `TUNEFLEET_HOME`.

    Args:
        overrides: Values by field name; `None` means "not given".

    Raises:
        MachineError: If a value is invalid.
    """
    file = load(ProcessSettings).home_dir / "agent.env"
    if _is_placed_by_dotenv(file):
        return load(AgentSettings, **overrides)
    files = (file, DOTENV)  # pydantic-settings: the last file wins
    return load(AgentSettings, _env_file=files, **overrides)


def load_worker(**overrides: Any) -> WorkerSettings:
    """Build a worker's settings: options, environment, `.env`, then the file that `tunefleet join` saved.

    That file, `worker.env` in `TUNEFLEET_HOME`, is used only if neither a key nor a Redis is set elsewhere, and only
    for the server that its key was created for.

    Args:
        overrides: Values by field name; `None` means "not given".

    Raises:
        MachineError: If a value is invalid.
    """
    plain = load(WorkerSettings, **overrides)
    file = plain.joined_file
    if plain.key is not None or plain.redis_url is not None or not file.is_file() or _is_placed_by_dotenv(file):
        return plain
    joined = load(WorkerSettings, _env_file=(file, DOTENV), **overrides)
    return joined if joined.server_url == saved_server(file) else plain


def saved_server(file: Path) -> str | None:
    """Return the server in the settings file that `tunefleet join` saved."""
    saved = dotenv_values(file)
    return next((saved[name] for name in WorkerSettings.names_of("TUNEFLEET_SERVER_URL") if saved.get(name)), None)
