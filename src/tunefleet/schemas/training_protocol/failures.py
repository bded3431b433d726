"""What went wrong with a job, as the backend half of the training-agent protocol tells it (contract B6)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tunefleet.schemas.base import Message


class ErrorItem(Message):
    """One kind of error that a job ran into."""

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
    """A traceback, raw and taken apart."""

    raw: str
    frames: list[Frame]
    exception_type: str | None = None
    exception_message: str | None = None


class JobErrors(Message):
    """What went wrong in a job."""

    job_id: str
    error_summary: str | None
    errors: list[ErrorItem]
    traceback: TracebackView | None
    error_count: int
    unique_error_count: int


class Suggestion(Message):
    """A change of the configuration that may help."""

    field: str
    current_value: Any = None
    suggested_value: Any = None
    reason: str
    impact: str


class Analysis(Message):
    """Why a job failed, as far as its last words tell."""

    error_type: str
    error_phase: str | None = None
    description: str
    confidence: Literal["high", "medium", "low"]
    suggestions: list[Suggestion]


class FailureAnalysis(Message):
    """The answer of analyze-failure."""

    success: Literal[True] = True
    analysis: Analysis
    job_config: dict[str, Any]
