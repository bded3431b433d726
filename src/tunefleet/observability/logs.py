"""Log formats: text for people, one JSON object per line for machines. Credentials are masked in both."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Any, Final, Literal

from tunefleet.observability import context
from tunefleet.observability.scrub import scrub

LogFormat = Literal["text", "json"]
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
