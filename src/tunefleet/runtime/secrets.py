"""Secrets that a task references as `${secret:NAME}`: sources, substitution and redaction.

Only the job's process gets the value: job.json, journal, log, result and messages contain the name. Values come from
`TUNEFLEET_SECRET_<NAME>` variables and from files in `TUNEFLEET_SECRETS_DIR`; `TUNEFLEET_SECRETS_LIMITS` restricts
their use.
"""

from __future__ import annotations

import json
import logging
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from tunefleet.runtime import secret_limits
from tunefleet.settings import SECRET_PREFIX
from tunefleet.spec.expressions.references import fill_secrets, secrets_of

logger = logging.getLogger(__name__)

# Redacting shorter values would make logs unreadable.
MIN_LENGTH: Final = 4
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MAX_BYTES: Final = 64 << 10


class Secrets:
    """The secrets of one machine.

    Args:
        variables: Name → value, from the environment.
        folder: Folder with one file per secret, mode 0600; None for none.
        limits: File with the allowed projects and hosts of each secret; None for no limits.

    Raises:
        InputError: If the limits cannot be read.
        SpecError: If the limits are invalid.
    """

    def __init__(self, variables: Mapping[str, str], folder: Path | None = None, limits: Path | None = None) -> None:
        self._variables = {name: value for name, value in variables.items() if _usable(name, value)}
        self._folder = folder.expanduser().absolute() if folder is not None else None
        self._limits_file = limits.expanduser().absolute() if limits is not None else None
        self._limits = secret_limits.read_limits(self._limits_file)

    def names(self) -> tuple[str, ...]:
        """Return the names of the usable secrets, sorted, without files that other users can read."""
        files = self._folder.iterdir() if self._folder is not None and self._folder.is_dir() else ()
        found = {path.name for path in files if _NAME.fullmatch(path.name) and _read(path) is not None}
        return tuple(sorted(self._variables.keys() | found))

    def reported_names(self) -> tuple[str, ...]:
        """Return the names as reported to a server, sorted; `NAME@PROJECT` for each project of a restricted secret."""
        # A server without support for limits does not find a secret of that name, and so places no task for it here.
        found: list[str] = []
        for name in self.names():
            limit = self._limits.get(name)
            projects = None if limit is None else limit.projects
            found += [name] if projects is None else [f"{name}@{project}" for project in projects]
        return tuple(sorted(found))

    def unknown(self) -> tuple[str, ...]:
        """Return limited names without a secret, such as misspelled ones."""
        return tuple(sorted(self._limits.keys() - set(self.names())))

    def check(self, spec: Mapping[str, Any], kind: str, project: str | None) -> None:
        """Reject a task that would use a secret against its limits, before anything is sent.

        Args:
            project: Project of the task; None if unknown, or without projects.

        Raises:
            InputError: With the field, the secret and how to fix it.
        """
        secret_limits.check(spec, kind, project, self._limits, self.get)

    def check_sent(self, values: Any, url: str) -> None:
        """Reject sending secrets to a host that is not allowed.

        Raises:
            InputError: With the secret, the host and how to fix it.
        """
        secret_limits.check_sent(values, url, self._limits)

    def get(self, name: str) -> str | None:
        """Return a secret's value; None if it is missing or unusable."""
        value = self._variables.get(name)
        if value is not None or self._folder is None or not _NAME.fullmatch(name):
            return value
        return _read(self._folder / name)

    def fill(self, spec: Any) -> Any:
        """Return a spec with secret values filled in; only for the process that computes.

        Raises:
            InputError: If this machine lacks a secret.
        """
        return fill_secrets(spec, self.get) if _marked(spec) else spec

    def redaction(self, spec: Any) -> Redaction:
        """Return a redaction of the secrets that a spec references."""
        named = {name: self.get(name) for name in (secrets_of(spec) if _marked(spec) else ())}
        return Redaction({name: value for name, value in named.items() if value is not None})

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that a job's process needs to resolve secrets itself."""
        found = {f"{SECRET_PREFIX}{name}": value for name, value in self._variables.items()}
        if self._folder is not None:
            found["TUNEFLEET_SECRETS_DIR"] = str(self._folder)
        if self._limits_file is not None:
            found["TUNEFLEET_SECRETS_LIMITS"] = str(self._limits_file)
        return found


class Redaction:
    """Replaces the values of secrets by their names."""

    def __init__(self, values: Mapping[str, str]) -> None:
        forms = {form: f"${{secret:{name}}}" for name, value in values.items() for form in _forms(value)}
        # Longest first: one value may be the beginning of another.
        self._forms = dict(sorted(forms.items(), key=lambda form: -len(form[0])))
        self._bytes = [form.encode() for form in self._forms]

    def __bool__(self) -> bool:
        """Whether there is anything to redact."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Redact a text."""
        for form, name in self._forms.items():
            text = text.replace(form, name)
        return text

    def value(self, value: Any) -> Any:
        """Redact a JSON value, including keys."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(each) for key, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list | tuple) else value

    def same_length(self, data: bytes) -> bytes:
        """Replace values by asterisks of the same length, so that byte offsets do not change."""
        for form in self._bytes:
            data = data.replace(form, b"*" * len(form))
        return data


class RedactingStream:
    """A text stream that redacts secrets in its output."""

    def __init__(self, stream: TextIO, redaction: Redaction) -> None:
        self._stream = stream
        self._redaction = redaction

    def write(self, text: str) -> int:
        """Write a redacted text."""
        self._stream.write(self._redaction.text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Delegate to the stream."""
        return getattr(self._stream, name)


def _forms(value: str) -> set[str]:
    """Return the forms in which a value may appear: as it is, JSON-escaped, each line of it, and stripped."""
    lines = {value, value.strip(), *value.splitlines()}
    plain = {line for line in lines if len(line) >= MIN_LENGTH}
    return (
        plain
        | {json.dumps(line)[1:-1] for line in plain}
        | {json.dumps(line, ensure_ascii=False)[1:-1] for line in plain}
    )


def _marked(value: Any) -> bool:
    """Whether any text of a spec contains `${`; a cheap check, since most do not."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(_marked(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_marked(each) for each in value)


def _usable(name: str, value: str) -> bool:
    if len(value.strip()) >= MIN_LENGTH and _NAME.fullmatch(name):
        return True
    logger.warning("Ignoring secret %s: it has fewer than %d characters, or an invalid name.", name, MIN_LENGTH)
    return False


def _read(path: Path) -> str | None:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
            return None
        if about.st_mode & 0o077:
            logger.warning("Ignoring secret %s: other users can read its file. Set its mode to 0600.", path)
            return None
        value = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("Ignoring secret %s: %s", path, error)
        return None
    return value if _usable(path.name, value) else None
