"""The forms of a log line: text for people, one JSON object a line for machines. Credentials are hidden in both."""

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
    """A line for people."""

    def __init__(self, form: str = TEXT, datefmt: str | None = None) -> None:
        super().__init__(form, datefmt=datefmt)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, traceback included, without credentials."""
        return scrub(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the ids of what the line belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, without credentials."""
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
    """A log file that rotates, and that its user alone can read, whatever the umask and the folder's permissions."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_private)


def _private(name: str, flags: int) -> int:
    fd = os.open(name, flags, 0o600)
    with contextlib.suppress(OSError):  # another user's file keeps its permissions
        os.fchmod(fd, 0o600)
    return fd


def formatter(form: LogFormat) -> logging.Formatter:
    """Return what writes lines of a form."""
    return JsonLines() if form == "json" else TextLines()
