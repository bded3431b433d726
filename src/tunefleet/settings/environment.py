"""The environment itself: what a child inherits, where secrets for tasks lie, which variables have no effect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from dotenv import dotenv_values

from tunefleet.errors import MachineError
from tunefleet.unsupported import UNSUPPORTED

DOTENV: Final = ".env"
_DOTENV_IS_READ: Final = "TUNEFLEET_DOTENV"
"""`false` in the environment: no `.env` is read, neither by this process nor by those that it starts."""
# `${secret:NAME}` in a spec is the variable with this before the name, or a file `NAME` in `TUNEFLEET_SECRETS_DIR`.
SECRET_PREFIX: Final = "TUNEFLEET_SECRET_"

# Where a job finds the values of its secrets, for a moment.
SECRETS_DIR: Final = "TUNEFLEET_SECRETS_DIR"
_KEYS: Final = ("TUNEFLEET_KEY", "TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN", "AGENT_KEY", "NEBULA_API_TOKEN")
_ADDRESSES: Final = ("REDIS_URL", "TUNEFLEET_DATABASE_URL", "TUNEFLEET_SMTP_URL")
"""Variables of our own processes that no child is given unasked."""
# Ends of the names of variables such as `HF_TOKEN`, `WANDB_API_KEY` or `PGPASSWORD`.
_CREDENTIALS: Final = re.compile(
    r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSFILE|CREDENTIALS?|_PAT|_DSN|_AUTH|AUTH_SOCK)$", re.I
)
# An address with a password in it.
_SIGNED: Final = re.compile(r"\w+://[^/\s@]*:[^/\s@]*@")
_CLOUDS: Final = ("AWS_", "AZURE_STORAGE_", "GOOGLE_APPLICATION_")


def inherited_environment(*drop: str) -> dict[str, str]:
    """Return this process's environment for a child, without variables that the child must not see.

    Args:
        drop: Names to leave out; keys of ours, and addresses that may hold a password, are always left out.
    """
    hidden = {*_KEYS, *_ADDRESSES, *drop}
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SECRET_PREFIX)}
    return {name: value for name, value in plain.items() if name not in hidden}


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for somebody else's code: no token, no key, no address with a password.

    Args:
        environment: Such as `inherited_environment` returns.
    """
    return {
        name: value
        for name, value in environment.items()
        if not _CREDENTIALS.search(name) and not _SIGNED.search(value) and not name.startswith(_CLOUDS)
    }


def cloud_variables() -> tuple[str, ...]:
    """Return the names of the clouds' variables that are set: keys, profiles and roles, which may open a bucket."""
    return tuple(name for name in os.environ if name.startswith(_CLOUDS))


def variables_of(prefixes: Sequence[str]) -> dict[str, str]:
    """Return the variables whose names begin so, from the environment and from `.env`, which counts less.

    Args:
        prefixes: Such as `WANDB_`; a whole name is one, too.
    """
    given = {**dotenv(), **os.environ}
    return {name: value for name, value in given.items() if value and name.startswith(tuple(prefixes))}


def variables_for(who: str, prefixes: Sequence[str]) -> dict[str, str]:
    """Return what `variables_of` does, for a library that may send a credential where another of them says.

    Args:
        who: What messages call the library.

    Raises:
        MachineError: If `.env` adds variables to a credential of the environment.
    """
    given = variables_of(prefixes)
    secret = next((name for name in set(given) - set(without_credentials(given)) if is_set(name)), None)
    added = next((name for name in given if not is_set(name)), None)
    if secret is not None and added is not None:
        raise MachineError(
            f"{added} of {who} stands in .env, and {secret}, which might be sent where it says, in the environment.",
            hint="Set both in the same place.",
        )
    return given


def is_set(name: str) -> bool:
    """Whether a variable stands in the environment itself, and is not empty."""
    return bool(os.environ.get(name))


def first_set(names: Sequence[str]) -> str | None:
    """Return the first of these variables that `is_set`; a name that ends with `_` is all those that begin so."""
    for name in names:
        for each in sorted(os.environ) if name.endswith("_") else [name]:
            if each.startswith(name) and is_set(each):
                return each
    return None


def is_dotenvs(name: str) -> bool:
    """Whether `.env` alone says what a variable is."""
    return bool(dotenv().get(name)) and not is_set(name)


def dotenv_is_read() -> bool:
    """Whether a file `.env` is read in this process."""
    return os.environ.get(_DOTENV_IS_READ, "").lower() not in {"false", "0"}


def dotenv() -> dict[str, str | None]:
    """Return what the file `.env` says, if it is read."""
    return dotenv_values(DOTENV, interpolate=False) if dotenv_is_read() else {}


@contextmanager
def without_dotenv() -> Iterator[None]:
    """Read no file `.env` meanwhile, here and in what is started: one may have come with what was unpacked here."""
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
    """Return the secrets for tasks that lie in this process's environment, by their names without the prefix."""
    found = {name: value for name, value in os.environ.items() if name.startswith(SECRET_PREFIX)}
    return {name.removeprefix(SECRET_PREFIX): value for name, value in found.items()}


def forget_secret_variables() -> None:
    """Take the secrets for tasks out of this process's environment: what runs from now on does not find them."""
    for name in [name for name in os.environ if name.startswith(SECRET_PREFIX)]:
        del os.environ[name]


def notify_socket() -> str | None:
    """Return where systemd wants to be told that a service is ready; null without it."""
    return os.environ.get("NOTIFY_SOCKET") or None


def replace_environment(environment: Mapping[str, str]) -> None:
    """Make this the environment of the process: a forked trainer takes the one that its job names.

    Args:
        environment: All of it; what it lacks is removed.
    """
    os.environ.clear()
    os.environ.update(environment)


def unsupported(process: Literal["server", "worker"]) -> list[str]:
    """Return a sentence for each variable that is set and has no effect here."""
    given = {name for name, value in {**dotenv(), **os.environ}.items() if value}
    return [
        f"{name} is not supported and has no effect: {instead}."
        for name, instead in UNSUPPORTED[process].items()
        if name in given
    ]
