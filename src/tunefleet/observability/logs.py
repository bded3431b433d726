"""Log formats (text for people, JSON lines for machines), and the masking of credentials in logs and shipped text."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import re
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Any, Final, Literal

from tunefleet.observability import context

LogFormat = Literal["text", "json"]
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_USER: Final = re.compile(rb"(?<=//)[^\s/@]{1,512}(?=@)")
_SIGNED: Final = re.compile(
    rb"(?i)(?<=[?&;])(?P<name>[\w.-]{0,64}(?:signature|sig|token|api_?key|account_?key|secret)[\w.-]{0,64}=)(?P<value>[^\s&;'\"<>]{1,2048})"
)
_TUNEFLEET_KEYS: Final = re.compile(rb"\b(?:tf_[\w-]{40}|(?:att|camp)-[0-9a-f]{12}\.[0-9a-f]{32})(?![\w-])")
# Keys of Hugging Face and RunPod, which third-party programs may print.
_PROVIDER_KEYS: Final = re.compile(rb"\b(?:hf|rpa)_[A-Za-z0-9]{16,256}(?![\w-])")


class TextLines(logging.Formatter):
    """Text format for people."""

    def __init__(self, form: str = TEXT, datefmt: str | None = None) -> None:
        super().__init__(form, datefmt=datefmt)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with traceback, credentials masked."""
        return scrub(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message and ids."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object, credentials masked."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": scrub(record.getMessage()),
            "where": f"{record.module}:{record.funcName}:{record.lineno}",
            **context.ids(),
        }
        if record.exc_info:
            entry["exception"] = scrub(self.formatException(record.exc_info))
        if record.stack_info:
            entry["stack"] = scrub(self.formatStack(record.stack_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


class PrivateLogFile(logging.handlers.RotatingFileHandler):
    """A rotating log file that only its user can read, regardless of umask and folder permissions."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_private)


def _private(name: str, flags: int) -> int:
    fd = os.open(name, flags, 0o600)
    with contextlib.suppress(OSError):  # fails for another user's file, which keeps its permissions
        os.fchmod(fd, 0o600)
    return fd


def formatter(form: LogFormat) -> logging.Formatter:
    """Return the formatter of a log format."""
    return JsonLines() if form == "json" else TextLines()


def scrub_bytes(data: bytes) -> bytes:
    """Mask user names and passwords in URLs, signatures in query strings, and known types of keys."""
    # Substring tests first: they are faster than the regular expressions, and most text contains no credentials.
    if b"@" in data:
        data = _USER.sub(_stars, data)
    if b"=" in data:
        data = _SIGNED.sub(_starred_value, data)
    if b"tf_" in data or b"att-" in data or b"camp-" in data:
        data = _TUNEFLEET_KEYS.sub(_stars, data)
    if b"hf_" in data or b"rpa_" in data:
        data = _PROVIDER_KEYS.sub(_stars, data)
    return data


def scrub(text: str) -> str:
    """Mask credentials in a string."""
    return scrub_bytes(text.encode(errors="replace")).decode(errors="replace")


def _stars(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match[0])


def _starred_value(match: re.Match[bytes]) -> bytes:
    return match["name"] + b"*" * len(match["value"])
