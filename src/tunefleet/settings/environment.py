"""The process environment: what a child inherits, the secrets of tasks, variables without effect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from dotenv import dotenv_values

from tunefleet.errors import MachineError
from tunefleet.unsupported import UNSUPPORTED_VARIABLES

DOTENV: Final = ".env"
# `false` in the environment: neither this process nor its children read a `.env`.
_DOTENV_IS_READ: Final = "TUNEFLEET_DOTENV"
# `${secret:NAME}` in a spec is the variable with this before the name, or a file `NAME` in `TUNEFLEET_SECRETS_DIR`.
SECRET_PREFIX: Final = "TUNEFLEET_SECRET_"

# Folder with one file per secret, named like the secret.
SECRETS_DIR: Final = "TUNEFLEET_SECRETS_DIR"
# Keys of our own processes, and addresses that may contain a password: children inherit none of them.
_KEYS: Final = (
    "TUNEFLEET_KEY", "TUNEFLEET_WORKER_KEY", "TUNEFLEET_SHARED_TOKEN", "ORCHESTRATOR_TOKEN", "TUNEFLEET_AGENT_KEY",
    "AGENT_KEY", "TUNEFLEET_API_TASK_TOKEN", "NEBULA_API_TOKEN",
)  # fmt: skip
_ADDRESSES: Final = ("TUNEFLEET_REDIS_URL", "REDIS_URL", "TUNEFLEET_DATABASE_URL", "TUNEFLEET_SMTP_URL")
# Suffixes of names of credentials, such as `HF_TOKEN`, `WANDB_API_KEY` or `PGPASSWORD`.
_CREDENTIALS: Final = re.compile(
    r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSFILE|CREDENTIALS?|_PAT|_DSN|_AUTH|AUTH_SOCK)$", re.I
)
# A URL with a password in it.
_URL_WITH_PASSWORD: Final = re.compile(r"\w+://[^/\s@]*:[^/\s@]*@")
_CLOUDS: Final = ("AWS_", "AZURE_STORAGE_", "GOOGLE_APPLICATION_")


def inherited_environment(*drop: str) -> dict[str, str]:
    """Return a copy of this process's environment for a child, without Tunefleet's own keys.

    Args:
        drop: Further names to leave out; our keys and addresses that may contain a password never pass.
    """
    hidden = {*_KEYS, *_ADDRESSES, *drop}
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SECRET_PREFIX)}
    return {name: value for name, value in plain.items() if name not in hidden}


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for third-party code: no token, no key, no URL with a password.

    Args:
        environment: Such as `inherited_environment` returns.
    """
    return {
        name: value
        for name, value in environment.items()
        if not _CREDENTIALS.search(name) and not _URL_WITH_PASSWORD.search(value) and not name.startswith(_CLOUDS)
    }


def cloud_variables() -> tuple[str, ...]:
    """Return the names of the cloud providers' variables that are set: keys, profiles and roles for buckets."""
    return tuple(name for name in os.environ if name.startswith(_CLOUDS))


def variables_of(prefixes: Sequence[str]) -> dict[str, str]:
    """Return the variables with these name prefixes, from the environment and from `.env`; the environment wins.

    Args:
        prefixes: Such as `WANDB_`; a full name also works.
    """
    given = {**dotenv(), **os.environ}
    return {name: value for name, value in given.items() if value and name.startswith(tuple(prefixes))}


def variables_for(library: str, prefixes: Sequence[str]) -> dict[str, str]:
    """Return the variables of a library that may send a credential to the address that another variable names.

    Args:
        library: Its name in messages.

    Raises:
        MachineError: If `.env` adds variables while a credential comes from the environment.
    """
    given = variables_of(prefixes)
    secret = next((name for name in set(given) - set(without_credentials(given)) if is_set(name)), None)
    added = next((name for name in given if not is_set(name)), None)
    if secret is not None and added is not None:
        raise MachineError(
            f"{added} ({library}) is set in .env, but {secret}, which may be sent there, is set in the environment.",
            hint="Set both in the same place.",
        )
    return given


def is_set(name: str) -> bool:
    """Whether a variable is set in the environment itself and is not empty."""
    return value_of(name) is not None


def value_of(name: str) -> str | None:
    """Return a variable of the environment itself; `None` if it is not set or empty."""
    return os.environ.get(name) or None


def first_set(names: Sequence[str]) -> str | None:
    """Return the first of these variables that `is_set`; a name that ends with `_` is a prefix."""
    for name in names:
        for each in sorted(os.environ) if name.endswith("_") else [name]:
            if each.startswith(name) and is_set(each):
                return each
    return None


def is_dotenvs(name: str) -> bool:
    """Whether a variable is set in `.env` only."""
    return bool(dotenv().get(name)) and not is_set(name)


def dotenv_is_read() -> bool:
    """Whether this process reads `.env`."""
    return os.environ.get(_DOTENV_IS_READ, "").lower() not in {"false", "0"}


def dotenv() -> dict[str, str | None]:
    """Return the variables of `.env`, if it is read."""
    # No interpolation: `NAME=${HF_TOKEN}` would copy a secret of the environment under another name.
    return dotenv_values(DOTENV, interpolate=False) if dotenv_is_read() else {}


@contextmanager
def without_dotenv() -> Iterator[None]:
    """Ignore `.env` in the body, in this process and in its children."""
    # The working directory may be an unpacked archive that brought its own `.env`.
    before = os.environ.get(_DOTENV_IS_READ)
    os.environ[_DOTENV_IS_READ] = "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_DOTENV_IS_READ, None)
        else:
            os.environ[_DOTENV_IS_READ] = before


def secret_variables() -> dict[str, str]:
    """Return the secrets of tasks that are in this process's environment, by name without the prefix."""
    found = {name: value for name, value in os.environ.items() if name.startswith(SECRET_PREFIX)}
    return {name.removeprefix(SECRET_PREFIX): value for name, value in found.items()}


def forget_secret_variables() -> None:
    """Remove the secrets of tasks from this process's environment, so that later children do not inherit them."""
    for name in [name for name in os.environ if name.startswith(SECRET_PREFIX)]:
        del os.environ[name]


def notify_socket() -> str | None:
    """Return systemd's socket for readiness notifications; `None` without systemd."""
    return os.environ.get("NOTIFY_SOCKET") or None


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment of this process; a forked trainer takes the one of its job.

    Args:
        environment: The complete new environment.
    """
    os.environ.clear()
    os.environ.update(environment)


def unsupported(process: Literal["server", "worker"]) -> list[str]:
    """Return a sentence for each variable that is set and has no effect."""
    given = {name for name, value in {**dotenv(), **os.environ}.items() if value}
    return [
        f"{name} is not supported and has no effect: {instead}."
        for name, instead in UNSUPPORTED_VARIABLES[process].items()
        if name in given
    ]
