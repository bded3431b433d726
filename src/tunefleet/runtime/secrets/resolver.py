"""Secrets that a task names as `${secret:NAME}`: whence they come, where they are put in, and how they are hidden.

A value is known to the process that computes and to nobody else: job.json, journal, log, result and messages hold the
name. Values come from `TUNEFLEET_SECRET_<NAME>` variables and from files in `TUNEFLEET_SECRETS_DIR`; where each may go
stands in `TUNEFLEET_SECRETS_LIMITS`.
"""

from __future__ import annotations

import json
import logging
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from tunefleet.runtime.secrets import secret_limits
from tunefleet.settings import SECRET_PREFIX
from tunefleet.spec.expressions.references import fill_secrets, secrets_of

logger = logging.getLogger(__name__)

# A shorter value could not be kept out of a log without making it unreadable.
MIN_LENGTH: Final = 4
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MAX_BYTES: Final = 64 << 10


class Secrets:
    """The secrets of one machine.

    Args:
        folder: One file for each further secret, mode 0600; None for none.
        limits: The file that says which projects and hosts each is for; None if none is limited.

    Raises:
        InputError: If that file cannot be read.
        SpecError: If it is wrong.
    """

    def __init__(self, variables: Mapping[str, str], folder: Path | None = None, limits: Path | None = None) -> None:
        self._variables = {name: value for name, value in variables.items() if _usable(name, value)}
        self._folder = folder.expanduser().absolute() if folder is not None else None
        self._limits_file = limits.expanduser().absolute() if limits is not None else None
        self._limits = secret_limits.read_limits(self._limits_file)

    def names(self) -> tuple[str, ...]:
        """Return the names of the secrets that can be used, sorted; a file that others can read is not one of them."""
        files = self._folder.iterdir() if self._folder is not None and self._folder.is_dir() else ()
        found = {path.name for path in files if _NAME.fullmatch(path.name) and _read(path) is not None}
        return tuple(sorted(self._variables.keys() | found))

    def announced(self) -> tuple[str, ...]:
        """Return the names as a server is told of them, sorted: `NAME@PROJECT` for each project that one is kept for.

        A server that knows nothing of such limits then finds no secret of that name here.
        """
        found: list[str] = []
        for name in self.names():
            limit = self._limits.get(name)
            kept_for = None if limit is None else limit.projects
            found += [name] if kept_for is None else [f"{name}@{project}" for project in kept_for]
        return tuple(sorted(found))

    def unknown(self) -> tuple[str, ...]:
        """Return the names that are limited and that no secret has: somebody may have misspelt them."""
        return tuple(sorted(self._limits.keys() - set(self.names())))

    def check(self, spec: Mapping[str, Any], kind: str, project: str | None) -> None:
        """Refuse a task that would bring a secret where it may not go; nothing has been sent then.

        Args:
            project: Whose task it is; None where there are no projects, or a server does not say.

        Raises:
            InputError: Names the field, the secret and the way out.
        """
        secret_limits.check(spec, kind, project, self._limits, self.get)

    def check_sent(self, values: Any, url: str) -> None:
        """Refuse to send secrets to an address that they may not go to.

        Raises:
            InputError: Names the secret, the host and the way out.
        """
        secret_limits.check_sent(values, url, self._limits)

    def get(self, name: str) -> str | None:
        """Return a secret's value; None if there is none of that name, or it cannot be used."""
        value = self._variables.get(name)
        if value is not None or self._folder is None or not _NAME.fullmatch(name):
            return value
        return _read(self._folder / name)

    def fill(self, spec: Any) -> Any:
        """Return a spec with the values in the place of their names; for the eyes of what computes.

        Raises:
            InputError: If this machine lacks a secret.
        """
        return fill_secrets(spec, self.get) if _marked(spec) else spec

    def redaction(self, spec: Any) -> Redaction:
        """Return what hides the values that a spec names."""
        named = {name: self.get(name) for name in (secrets_of(spec) if _marked(spec) else ())}
        return Redaction({name: value for name, value in named.items() if value is not None})

    @property
    def environment(self) -> dict[str, str]:
        """What a job's process needs in its environment to put the values in by itself."""
        found = {f"{SECRET_PREFIX}{name}": value for name, value in self._variables.items()}
        if self._folder is not None:
            found["TUNEFLEET_SECRETS_DIR"] = str(self._folder)
        if self._limits_file is not None:
            found["TUNEFLEET_SECRETS_LIMITS"] = str(self._limits_file)
        return found


class Redaction:
    """Puts the names of secrets where their values stand."""

    def __init__(self, values: Mapping[str, str]) -> None:
        forms = {form: f"${{secret:{name}}}" for name, value in values.items() for form in _forms(value)}
        # The longest first: one value may be the beginning of another.
        self._forms = dict(sorted(forms.items(), key=lambda form: -len(form[0])))
        self._bytes = [form.encode() for form in self._forms]

    def __bool__(self) -> bool:
        """Whether there is anything to hide."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Hide the values in a text."""
        for form, name in self._forms.items():
            text = text.replace(form, name)
        return text

    def value(self, value: Any) -> Any:
        """Hide the values in everything that JSON can hold."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(each) for key, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list | tuple) else value

    def same_length(self, data: bytes) -> bytes:
        """Put stars over the values, so that what is counted in bytes stays where it is."""
        for form in self._bytes:
            data = data.replace(form, b"*" * len(form))
        return data


class QuietStream:
    """A text stream that hides the values of secrets in what is written to it."""

    def __init__(self, stream: TextIO, redaction: Redaction) -> None:
        self._stream = stream
        self._redaction = redaction

    def write(self, text: str) -> int:
        """Write a text without the values."""
        self._stream.write(self._redaction.text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Be the stream in everything else."""
        return getattr(self._stream, name)


def _forms(value: str) -> set[str]:
    """Return how a value may be written: as it is, as JSON has it, each line of it, and without blanks around it."""
    lines = {value, value.strip(), *value.splitlines()}
    plain = {line for line in lines if len(line) >= MIN_LENGTH}
    return (
        plain
        | {json.dumps(line)[1:-1] for line in plain}
        | {json.dumps(line, ensure_ascii=False)[1:-1] for line in plain}
    )


def _marked(value: Any) -> bool:
    """Whether any text of a spec has a `${`; most have none."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(_marked(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_marked(each) for each in value)


def _usable(name: str, value: str) -> bool:
    if len(value.strip()) >= MIN_LENGTH and _NAME.fullmatch(name):
        return True
    logger.warning("The secret %s is not used: it has fewer than %d characters, or no usable name.", name, MIN_LENGTH)
    return False


def _read(path: Path) -> str | None:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
            return None
        if about.st_mode & 0o077:
            logger.warning("The secret %s is not used: others can read its file. Give it mode 0600.", path)
            return None
        value = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("The secret %s is not used: %s", path, error)
        return None
    return value if _usable(path.name, value) else None
