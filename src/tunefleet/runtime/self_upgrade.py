"""Installs another version of this package into this environment, where that is ours to do."""

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
_BY_HAND: Final = "What was installed goes on; upgrade by hand on that machine."
_PIP_S: Final = 900.0
_OUTPUT_CHARS: Final = 2000
_INSTALL: Final = "/install"
_OFFER: Final = re.compile(
    r"tunefleet(?:\[[a-z0-9,]+\])? @ (?P<url>https?://\S+/tunefleet-(?P<version>[^-/\s]+)-[^-/\s]+-[^-/\s]+-[^-/\s]+\.whl)"
)


def upgrade(wanted: object, *, who: str, ask: Callable[[str], str], ca_file: Path | None = None) -> str:
    """Install the version that the server offers from which this package was installed.

    Nothing comes from a public index but what the package needs: a stranger may have the same name there.

    Args:
        wanted: The version, such as `1.2.3`; whatever the server offers if None.

    Raises:
        ConflictError: If the environment is not to be changed by us, or the server has another version.
        MachineError: If pip fails.
        UnreachableError: If the server does not answer.
    """
    if wanted is not None and not (isinstance(wanted, str) and _VERSION.fullmatch(wanted)):
        raise InputError(f"{wanted!r} is no version.", hint="Name one, such as 1.2.3.")
    if reason := refusal():
        raise ConflictError(f"This {who} cannot be upgraded from afar: {reason}.")
    server = installed_from()
    if server is None:
        raise ConflictError(
            f"This {who} cannot be upgraded from afar: it was not installed from a server.",
            hint="Upgrade it as it was installed.",
        )
    requirement = _offered(server, ask(f"{server}{_INSTALL}").strip(), wanted)
    command = [sys.executable, "-m", "pip", "install", "--upgrade", "--no-input", requirement]
    if ca_file is not None:
        command += ["--cert", str(ca_file)]
    logger.info("Upgrading: %s", " ".join(command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"pip could not be run: {error}.", hint=_BY_HAND) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        words = said[-1] if said else f"exit code {done.returncode}"
        raise MachineError(f"pip failed: {words}", hint=_BY_HAND)
    return done.stdout[-_OUTPUT_CHARS:]


def installed_from() -> str | None:
    """Return the server from which this package was installed; None if it came from elsewhere."""
    origin = json.loads(distribution("tunefleet").read_text("direct_url.json") or "{}").get("url", "")
    server, found, _ = origin.rpartition(f"{_INSTALL}/tunefleet-")
    return server if found and server.startswith(("http://", "https://")) else None


def _offered(server: str, line: str, wanted: str | None) -> str:
    """Return what pip is to install, if it is this server's and the version that is wanted."""
    offer = _OFFER.fullmatch(line)
    if offer is None or not offer["url"].startswith(f"{server}{_INSTALL}/"):
        raise ConflictError(f"{server} offers no package of its own.", hint=_BY_HAND)
    if wanted is not None and unquote(offer["version"]) != wanted:
        raise ConflictError(
            f"{server} offers {unquote(offer['version'])}, and not {wanted}.",
            hint="Upgrade the server first: what is on its machines speaks its own version.",
        )
    return line


def refusal() -> str | None:
    """Return why this environment is not ours to change; None if it is."""
    try:
        origin = distribution("tunefleet").read_text("direct_url.json")
    except PackageNotFoundError:
        return "it runs from a source tree that is not installed"
    if origin is not None and json.loads(origin).get("dir_info", {}).get("editable"):
        return "it runs from a source tree; update it there, then send restart"
    if (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists() and sys.prefix == sys.base_prefix:
        return "its Python is managed by the operating system"
    return None if find_spec("pip") is not None else "its environment has no pip; upgrade it with the tool that made it"
