"""The secrets named in a job's spec: read once in the trainer process, before any other code runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO, cast

from tunefleet import settings
from tunefleet.runtime.secrets import RedactingStream, Redaction, Secrets
from tunefleet.schemas.job_folder import Job


class _Taken:
    """The secrets that were removed from the environment."""

    secrets = Secrets({})
    redaction = Redaction({})


def read_secrets(job: Job) -> None:
    """Remove the secrets from the environment, and redact the values used by specs in printed output.

    Raises:
        InputError: If the spec uses a secret that is not allowed for it.
    """
    # Checked again: a worker has checked the job before it started it, but an agent has not.
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
    quiet = cast(TextIO, RedactingStream(stream, redaction))
    # Log handlers keep a reference to the stream, so replacing `sys.stderr` alone would not redact logs.
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            handler.setStream(quiet)
    return quiet


def filled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the values of its secrets; never write it to disk.

    Raises:
        InputError: If this machine lacks a secret.
    """
    filled_in: dict[str, Any] = _Taken.secrets.fill(spec)
    return filled_in


def redacted(text: str) -> str:
    """Return a text with the values of secrets replaced by their names."""
    return _Taken.redaction.text(text)


def redacted_in(value: Any) -> Any:
    """Return a JSON value with the values of secrets replaced by their names."""
    return _Taken.redaction.value(value)
