"""Trace spans of a task on its machine: accept, preparation, each launch with its steps, delivery.

Spans of the trainer are derived from its journal after the launch has ended. The trainer itself only gets the variable
`TRACEPARENT` with the span of its launch, for spans of the user's own code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import TunefleetError
from tunefleet.observability import context
from tunefleet.observability.context import SpanContext
from tunefleet.observability.spans import FinishedSpan, Spans, Value
from tunefleet.schemas.worker_link import Offer

VARIABLE: Final = "TRACEPARENT"
# Maximum number of save and evaluation spans per launch; later ones are dropped.
MAX_STEPS: Final = 500
_EVALUATED: Final = "eval_runtime"


@dataclass(frozen=True, slots=True)
class TrainerStep:
    """A step of a trainer, such as a save or an evaluation."""

    name: str
    start: float
    end: float
    about: Mapping[str, Value] = field(default_factory=dict)


class AttemptTrace:
    """The spans of one attempt.

    Args:
        spans: Destination of the spans; None if tracing is off. The trace context is propagated anyway.
    """

    def __init__(self, offer: Offer, spans: Spans | None, worker_id: str) -> None:
        self._place = context.read_traceparent(offer.traceparent)
        self._spans = spans
        self._about: dict[str, Value] = {
            "tunefleet.task": offer.task_id, "tunefleet.attempt": offer.attempt, "tunefleet.worker": worker_id,
        }  # fmt: skip

    @property
    def trace_id(self) -> str | None:
        """Trace id, for log lines."""
        return None if self._place is None else self._place.trace_id

    def environment(self, launch: str) -> dict[str, str]:
        """Return the environment variables with the trace context of a launch."""
        return {} if self._place is None else {VARIABLE: self._launch(self._place, launch).traceparent}

    @contextmanager
    def timed(self, name: str, key: str = "") -> Iterator[None]:
        """Export a span for the body; a `TunefleetError` marks it as failed.

        Args:
            key: Distinguishes spans of the same name, such as a launch id.
        """
        began = time.time()
        try:
            yield
        except TunefleetError as error:
            self.export(name, began, key=key, error=error.message)
            raise
        self.export(name, began, key=key)

    def export(self, name: str, start: float, *, key: str = "", error: str | None = None) -> None:
        """Export a span that ends now."""
        if self._place is not None:
            own = self._place.span(f"{name} {key}")
            self._export(FinishedSpan(name, own, self._place, start, time.time(), self._about, error))

    def whole(self, name: str, start: float, parent: str | None, error: str | None) -> None:
        """Export the root span of the attempt, if the server does not."""
        if self._place is not None:
            self._export(
                FinishedSpan(
                    name, self._place, context.read_traceparent(parent), start, time.time(), self._about, error
                )
            )

    def launched(self, launch: str, journal: Path, outcome: str, error: str | None) -> None:
        """Export the span of a launch that has ended, and those of its trainer's steps."""
        if self._place is None or self._spans is None:
            return
        began, steps = read(journal)
        now, own = time.time(), self._launch(self._place, launch)
        about = self._about | {"tunefleet.launch": launch, "tunefleet.outcome": outcome}
        failure = (error or outcome) if outcome == "failed" else None
        self._export(FinishedSpan("launch", own, self._place, began or now, now, about, failure))
        for number, each in enumerate(steps):
            name = f"{each.name} {number} of {launch}"
            self._export(
                FinishedSpan(each.name, own.span(name), own, each.start, each.end, self._about | dict(each.about))
            )

    def _export(self, span: FinishedSpan) -> None:
        if self._spans is not None:
            self._spans.tell(span)

    def _launch(self, place: SpanContext, launch: str) -> SpanContext:
        return place.span(f"launch {launch}")


def read(journal: Path) -> tuple[float | None, list[TrainerStep]]:
    """Return the start of a launch and the steps of its trainer, from the journal."""
    found = _JournalReader()
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if found.wants(line):
                    found.take(line)
    except FileNotFoundError:
        pass
    return found.began, found.steps


class _JournalReader:
    def __init__(self) -> None:
        self.began: float | None = None
        self.steps: list[TrainerStep] = []
        self._stepped = False

    def wants(self, line: bytes) -> bool:
        """Whether a line may be relevant: most are loss points, which need not be parsed."""
        if not self._stepped or self.began is None:
            return True
        return len(self.steps) < MAX_STEPS and (b'"checkpoint"' in line or b'"eval_runtime"' in line)

    def take(self, line: bytes) -> None:
        """Apply a record."""
        try:
            record = json.loads(line)
            at, kind = float(record["at"]), record["type"]
            if kind == "launch":
                self.began = at
            self._step(at, record)
            if kind == "checkpoint":
                about = {"tunefleet.step": int(record["step"]), "tunefleet.size_bytes": int(record["size_bytes"])}
                self.steps.append(TrainerStep("save", at - float(record.get("stall_s") or 0.0), at, about))
            elif kind == "metric" and _EVALUATED in record["values"]:
                took_s = float(record["values"][_EVALUATED])
                self.steps.append(TrainerStep("evaluate", at - took_s, at, {"tunefleet.step": int(record["step"])}))
        except (ValueError, KeyError, TypeError):
            return

    def _step(self, at: float, record: dict[str, Any]) -> None:
        if self._stepped or self.began is None or record["type"] not in {"progress", "metric"}:
            return
        if int(record.get("step") or 0) > 0:
            self._stepped = True
            self.steps.append(TrainerStep("first step", self.began, at, {"tunefleet.step": int(record["step"])}))
