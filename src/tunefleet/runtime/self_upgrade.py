"""Upgrades this package in its own environment, if that is allowed."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tunefleet.errors import ConflictError, InputError, MachineError

logger = logging.getLogger(__name__)

_VERSION: Final = re.compile(r"\d+(\.\d+){0,3}([abrc.]+\d+)?(\.(post|dev)\d+)?(\+[A-Za-z0-9.]{1,60})?")
_MANUAL_HINT: Final = "The installed version keeps running; upgrade it manually on that machine."
_PIP_S: Final = 900.0
_OUTPUT_CHARS: Final = 2000
_INSTALL: Final = "/install"
_REQUIREMENT: Final = re.compile(
    r"tunefleet(?:\[[a-z0-9,]+\])? @ (?P<url>https?://\S+/tunefleet-(?P<version>[^-/\s]+)-[^-/\s]+-[^-/\s]+-[^-/\s]+\.whl)"
)


def upgrade(wanted: object, *, who: str, ask: Callable[[str], str], ca_file: Path | None = None) -> str:
    """Install the version offered by the server from which this package was installed.

    Args:
        wanted: The version, such as `1.2.3`; None for the one that the server offers.
        who: `worker` or `agent`, for messages.
        ask: Returns the text at a URL.
        ca_file: CA certificates for pip.

    Raises:
        InputError: If the version is invalid.
        ConflictError: If the environment must not be changed, or the server has another version.
        MachineError: If pip fails.
        UnreachableError: If the server does not respond.
    """
    if wanted is not None and not (isinstance(wanted, str) and _VERSION.fullmatch(wanted)):
        raise InputError(f"{wanted!r} is not a version.", hint="Use for example 1.2.3.")
    if reason := refusal():
        raise ConflictError(f"This {who} cannot be upgraded remotely: {reason}.")
    server = installed_from()
    if server is None:
        raise ConflictError(
            f"This {who} cannot be upgraded remotely: it was not installed from a server.",
            hint="Upgrade it the way it was installed.",
        )
    # The package itself never comes from a public index, where a stranger could register the same name.
    requirement = _offered(server, ask(f"{server}{_INSTALL}").strip(), wanted)
    command = [sys.executable, "-m", "pip", "install", "--upgrade", "--no-input", requirement]
    if ca_file is not None:
        command += ["--cert", str(ca_file)]
    logger.info("Upgrading: %s", " ".join(command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"Cannot run pip: {error}.", hint=_MANUAL_HINT) from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        message = output[-1] if output else f"exit code {done.returncode}"
        raise MachineError(f"pip failed: {message}", hint=_MANUAL_HINT)
    return done.stdout[-_OUTPUT_CHARS:]


def installed_from() -> str | None:
    """Return the server from which this package was installed; None for any other source."""
    origin = json.loads(distribution("tunefleet").read_text("direct_url.json") or "{}").get("url", "")
    server, found, _ = origin.rpartition(f"{_INSTALL}/tunefleet-")
    return server if found and server.startswith(("http://", "https://")) else None


def _offered(server: str, line: str, wanted: str | None) -> str:
    """Return the requirement for pip, if it is from this server and has the wanted version."""
    offer = _REQUIREMENT.fullmatch(line)
    if offer is None or not offer["url"].startswith(f"{server}{_INSTALL}/"):
        raise ConflictError(f"{server} does not offer a package of its own.", hint=_MANUAL_HINT)
    if wanted is not None and unquote(offer["version"]) != wanted:
        raise ConflictError(
            f"{server} offers {unquote(offer['version'])}, not {wanted}.",
            hint="Upgrade the server first: its machines run the same version.",
        )
    return line


def refusal() -> str | None:
    """Return why this environment must not be changed; None if it may."""
    try:
        origin = distribution("tunefleet").read_text("direct_url.json")
    except PackageNotFoundError:
        return "it runs from a source tree that is not installed"
    if origin is not None and json.loads(origin).get("dir_info", {}).get("editable"):
        return "it runs from a source tree; update the source, then send restart"
    if (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists() and sys.prefix == sys.base_prefix:
        return "its Python is managed by the operating system"
    return None if find_spec("pip") is not None else "its environment has no pip; upgrade it as it was installed"
