"""The forms of a log line: text for people, one JSON object a line for machines. Credentials are hidden in both."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from tunefleet.observing import context
from tunefleet.observing.scrub import scrub

LogFormat = Literal["text", "json"]
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextLines(logging.Formatter):
    """A line for people.

    Args:
        form: As `logging.Formatter` takes it.
        datefmt: Likewise.
    """

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


def formatter(form: LogFormat) -> logging.Formatter:
    """Return what writes lines of a form."""
    return JsonLines() if form == "json" else TextLines()
