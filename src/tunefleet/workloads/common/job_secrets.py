"""The secrets that a job's spec names, in the process that computes: taken once, before any other code runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO, cast

from tunefleet import settings
from tunefleet.runtime.secrets.resolver import QuietStream, Redaction, Secrets
from tunefleet.schemas.job_folder import Job


class _Taken:
    """What this process has taken out of its environment."""

    secrets = Secrets({})
    redaction = Redaction({})


def take(job: Job) -> None:
    """Take the secrets out of the environment, and keep the values that specs name out of what is printed.

    Raises:
        InputError: If it would bring one where it may not go. A worker has looked already; an agent has not.
    """
    where = settings.load(settings.SecretSettings, _env_file=None)
    found = Secrets(settings.secret_variables(), where.secrets_dir, where.secrets_limits)
    settings.forget_secret_variables()
    specs = [job.spec, *(child.spec for child in job.merge_children)]
    for spec in specs:
        found.check(spec, job.kind, job.project)
    redaction = found.redaction(specs)
    _Taken.secrets, _Taken.redaction = found, redaction
    if redaction:
        sys.stdout, sys.stderr = _quiet(sys.stdout, redaction), _quiet(sys.stderr, redaction)


def _quiet(stream: TextIO, redaction: Redaction) -> TextIO:
    quiet = cast(TextIO, QuietStream(stream, redaction))
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            handler.setStream(quiet)
    return quiet


def filled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the values in it: never write it down.

    Raises:
        InputError: If this machine lacks a secret.
    """
    filled_in: dict[str, Any] = _Taken.secrets.fill(spec)
    return filled_in


def hidden(text: str) -> str:
    """Return a text with the names of secrets where their values stood."""
    return _Taken.redaction.text(text)


def hidden_in(value: Any) -> Any:
    """Return anything that JSON can hold with the names of secrets where their values stood."""
    return _Taken.redaction.value(value)
