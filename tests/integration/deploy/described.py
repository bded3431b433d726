"""What the shipped files say, read by the libraries for them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from pydantic import AliasChoices

from tests.machine import machine_environment
from tunefleet.settings.base import ProcessSettings

REPOSITORY = Path(__file__).resolve().parents[3]
DEPLOY = REPOSITORY / "deploy"
SCRIPTS = ("new-env.sh", "redis/users.sh")


def variables(cls: type[ProcessSettings]) -> set[str]:
    """The variables that a process reads."""
    found: set[str] = set()
    for field in cls.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            found |= {str(choice) for choice in field.validation_alias.choices}
    return found


def composed(name: str) -> dict[str, Any]:
    """A compose file."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return read


def new_env() -> dict[str, str]:
    """What new-env.sh makes."""
    made = subprocess.run(
        ["sh", str(DEPLOY / "new-env.sh")], env=machine_environment(), capture_output=True, text=True, check=True
    ).stdout
    return dict(line.split("=", 1) for line in made.splitlines() if not line.startswith("#"))


def unit(name: str) -> dict[str, list[str]]:
    """The lines of a systemd unit: each name with its values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text(encoding="utf-8").splitlines():
        if re.match(r"[A-Z]\w*=", line):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found
