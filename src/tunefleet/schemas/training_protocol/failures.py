"""Errors of a job in the backend part of the training-agent protocol (contract B6)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tunefleet.schemas.base import Message


class ErrorItem(Message):
    """One distinct error of a job."""

    timestamp: datetime | None = None
    level: str
    phase: str | None = None
    message: str
    dedupe_key: str
    count: int = 1


class Frame(Message):
    """A line of a traceback."""

    file: str
    line: int
    function: str
    code: str | None = None


class TracebackView(Message):
    """A traceback, raw and parsed."""

    raw: str
    frames: list[Frame]
    exception_type: str | None = None
    exception_message: str | None = None


class JobErrors(Message):
    """Errors of a job."""

    job_id: str
    error_summary: str | None
    errors: list[ErrorItem]
    traceback: TracebackView | None
    error_count: int
    unique_error_count: int


class Suggestion(Message):
    """A suggested configuration change."""

    field: str
    current_value: Any = None
    suggested_value: Any = None
    reason: str
    impact: str


class Analysis(Message):
    """Probable cause of a failure, derived from the last log lines."""

    error_type: str
    error_phase: str | None = None
    description: str
    confidence: Literal["high", "medium", "low"]
    suggestions: list[Suggestion]


class FailureAnalysis(Message):
    """Response of analyze-failure."""

    success: Literal[True] = True
    analysis: Analysis
    job_config: dict[str, Any]
