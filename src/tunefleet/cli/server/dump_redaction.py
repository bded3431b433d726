"""Takes secrets out of what is handed to others: by the names that they go by, by their form, and by their values.

The values are those that this machine knows: credentials in the environment and in `.env`, keys of server and client,
the secrets of tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tunefleet.errors import TunefleetError
from tunefleet.observability.scrub import scrub
from tunefleet.orchestrator import redaction
from tunefleet.runtime.secrets.resolver import Redaction
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
_LEAST: Final = 6
"""A shorter value is not looked for: it would be found in words that are none."""
_NAMED: Final = re.compile(
    r"(?i)(?P<name>[\w-]{0,64}(?:authorization|token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|cookie|credentials?)[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic)\s+)?)(?P<value>[^\s\"',;&<>}\]]{4,})"
)
_BEARER: Final = re.compile(r"(?i)(?P<name>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_MOST_BYTES: Final = 64 << 10
_PREFIXES: Final = ("TUNEFLEET_SECRET_",)


class Quiet:
    """Hides secrets in texts and in data.

    Args:
        values: Name → value of the secrets that are known.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._known = Redaction({name: value for name, value in values.items() if len(value) >= _LEAST})

    @classmethod
    def of_this_machine(cls) -> Quiet:
        """Return one that knows the secrets of this machine, as far as this user may read them."""
        return cls({**_variables(), **_files()})

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for pattern in (_NAMED, _BEARER):
            text = pattern.sub(_starred, text)
        return scrub(self._known.text(text))

    def document(self, data: Any) -> str:
        """Return data as JSON, without the values that go by a secret's name."""
        return json.dumps(redaction.tree(self._known.value(data)), indent=1, ensure_ascii=False, default=str) + "\n"


def _starred(match: re.Match[str]) -> str:
    # A reference to a secret is none.
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
    """Return settings; null if one of them cannot be used: what is wrong with it is said elsewhere."""
    try:
        return load(cls)
    except TunefleetError:
        return None


def data_dir() -> Path:
    """Return the server's folder, also where another of its settings cannot be used."""
    settings = loaded(ServerSettings)
    if settings is not None:
        return settings.data_dir
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
        return []  # it is not there, or another user's: then no text of it is ours to hide


def _content(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
