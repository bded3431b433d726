"""Installs another version of this package into this environment, where that is ours to do."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tunefleet.errors import ConflictError, InputError, MachineError

logger = logging.getLogger(__name__)

_VERSION: Final = re.compile(r"\d+(\.\d+){0,3}([abrc.]+\d+)?")
_BY_HAND: Final = "What was installed goes on; upgrade by hand on that machine."
_PIP_S: Final = 900.0
_OUTPUT_CHARS: Final = 2000


def upgrade(wanted: object, *, who: str) -> str:
    """Install a version.

    Args:
        wanted: Which, such as `1.2.3`; the newest if None.
        who: What runs here, for the message: `worker` or `agent`.

    Returns:
        The end of what pip printed.

    Raises:
        InputError: If it is no version.
        ConflictError: If the environment is not to be changed by us; the message says why.
        MachineError: If pip fails.
    """
    if wanted is not None and not (isinstance(wanted, str) and _VERSION.fullmatch(wanted)):
        raise InputError(f"{wanted!r} is no version.", hint="Name one, such as 1.2.3.")
    reason = refusal()
    if reason is not None:
        raise ConflictError(f"This {who} cannot be upgraded from afar: {reason}.")
    package = "tunefleet" if wanted is None else f"tunefleet=={wanted}"
    command = [sys.executable, "-m", "pip", "install", "--upgrade", "--no-input", package]
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
