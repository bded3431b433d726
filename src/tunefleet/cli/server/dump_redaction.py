"""Redacts secrets by key name, by pattern and by value.

The values are those known on this machine: credentials in the environment and in `.env`, keys of server and client,
secrets of tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tunefleet.errors import TunefleetError
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator import redaction
from tunefleet.runtime.secrets import Redaction
from tunefleet.settings import (
    ClientSettings,
    ProcessSettings,
    SecretSettings,
    ServerSettings,
    load,
    variables_of,
    without_credentials,
)

Settings = TypeVar("Settings", bound=ProcessSettings)
# A shorter value would match inside ordinary words.
_LEAST: Final = 6
# Bounded repetition keeps the search linear on long lines.
_NAMED: Final = re.compile(
    r"(?i)(?P<name>[\w-]{0,64}(?:authorization|token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|cookie|credentials?)[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic)\s+)?)(?P<value>[^\s\"',;&<>}\]]{4,})"
)
_BEARER: Final = re.compile(r"(?i)(?P<name>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_MOST_BYTES: Final = 64 << 10
_PREFIXES: Final = ("TUNEFLEET_SECRET_",)


class Redactor:
    """Redacts secrets in texts and in data.

    Args:
        values: Name → value of the known secrets.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._known = Redaction({name: value for name, value in values.items() if len(value) >= _LEAST})

    @classmethod
    def of_this_machine(cls) -> Redactor:
        """Return a redactor with the secrets of this machine that this user may read."""
        return cls({**_variables(), **_files()})

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        # By name and pattern first: this also finds values that are unknown here.
        for pattern in (_NAMED, _BEARER):
            text = pattern.sub(_starred, text)
        return scrub(self._known.text(text))

    def document(self, data: Any) -> str:
        """Return data as JSON without the values of secret keys."""
        return json.dumps(redaction.tree(self._known.value(data)), indent=1, ensure_ascii=False, default=str) + "\n"


def _starred(match: re.Match[str]) -> str:
    # A reference such as ${NAME} is not secret itself.
    return match[0] if match["value"].startswith(("${", "***", "null", "None")) else f"{match['name']}{redaction.STARS}"


def _variables() -> dict[str, str]:
    every = variables_of([""])
    harmless = without_credentials(every)
    found = {name: value for name, value in every.items() if name not in harmless or name.startswith(_PREFIXES)}
    passwords = {f"{name} (password)": word for name, value in every.items() if (word := _password(value))}
    return found | passwords


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password if "://" in value else None
    except ValueError:
        return None


def loaded(cls: type[Settings]) -> Settings | None:
    """Return settings; `None` if they are invalid, which their own part of the dump reports."""
    try:
        return load(cls)
    except TunefleetError:
        return None


def data_dir() -> Path:
    """Return the server's data folder, even if another setting is invalid."""
    settings = loaded(ServerSettings)
    if settings is not None:
        return settings.data_dir
    # Settings with an error cannot be loaded: read the variables themselves.
    given = variables_of(["TUNEFLEET_DATA", "TUNEFLEET_HOME"])
    home = Path(given.get("TUNEFLEET_HOME", "~/.tunefleet"))
    return Path(given.get("TUNEFLEET_DATA") or home / "data").expanduser()


def _files() -> dict[str, str]:
    folders: list[Path] = [data_dir() / "keys"]
    secret, saved_in = loaded(SecretSettings), loaded(ClientSettings)
    if secret is not None and secret.secrets_dir is not None:
        folders.append(secret.secrets_dir.expanduser())
    found = {path.name: text for folder in folders for path in _listed(folder) if (text := _content(path))}
    client = None if saved_in is None else _content(saved_in.client_file)
    try:
        saved = json.loads(client) if client else {}
    except ValueError:
        saved = {}
    if isinstance(saved, dict) and isinstance(saved.get("key"), str):
        found["client key"] = saved["key"]
    return found


def _listed(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError:
        return []  # missing, or another user's: the dump cannot contain its text


def _content(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
