"""A host's spans of a task's trace: the accept, the preparation, each launch with its steps, the delivery.

What a trainer did is read from its journal when the launch has ended: the trainer itself knows nothing of traces but
the variable `TRACEPARENT`, which names the span of its launch to whatever of the user's code wants to tell more.
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
from tunefleet.observability import traceparent
from tunefleet.observability.spans import Spans, Told, Value
from tunefleet.observability.traceparent import Place
from tunefleet.schemas.worker_link import Offer

VARIABLE: Final = "TRACEPARENT"
MOST_STEPS: Final = 500
"""How many saves and evaluations of a launch are told; the first ones."""
_EVALUATED: Final = "eval_runtime"


@dataclass(frozen=True, slots=True)
class Done:
    """Something that a trainer did."""

    name: str
    start: float
    end: float
    about: Mapping[str, Value] = field(default_factory=dict)


class AttemptTrace:
    """One attempt's part of the trace.

    Args:
        spans: Where spans go; null if nowhere: then the trace is handed on, and nothing is told.
    """

    def __init__(self, offer: Offer, spans: Spans | None, worker_id: str) -> None:
        self._place = traceparent.read(offer.traceparent)
        self._spans = spans
        self._about: dict[str, Value] = {
            "tunefleet.task": offer.task_id, "tunefleet.attempt": offer.attempt, "tunefleet.worker": worker_id,
        }  # fmt: skip

    @property
    def trace_id(self) -> str | None:
        """The trace, for lines of the log."""
        return None if self._place is None else self._place.trace_id

    def environment(self, launch: str) -> dict[str, str]:
        """Return what a launch's process is told of the trace."""
        return {} if self._place is None else {VARIABLE: self._launch(self._place, launch).traceparent}

    @contextmanager
    def timed(self, name: str, key: str = "") -> Iterator[None]:
        """Tell how long the body took; one that raises an error of ours has failed.

        Args:
            key: Tells one from another of the same name, such as a launch.
        """
        began = time.time()
        try:
            yield
        except TunefleetError as error:
            self.tell(name, began, key=key, error=error.message)
            raise
        self.tell(name, began, key=key)

    def tell(self, name: str, start: float, *, key: str = "", error: str | None = None) -> None:
        """Tell something that ends now."""
        if self._place is not None:
            own = self._place.span(f"{name} {key}")
            self._say(Told(name, own, self._place, start, time.time(), self._about, error))

    def whole(self, name: str, start: float, parent: str | None, error: str | None) -> None:
        """Tell the span that the others lie below, where nobody else tells it."""
        if self._place is not None:
            self._say(Told(name, self._place, traceparent.read(parent), start, time.time(), self._about, error))

    def launched(self, launch: str, journal: Path, outcome: str, error: str | None) -> None:
        """Tell a launch that has ended, and what its trainer did."""
        if self._place is None or self._spans is None:
            return
        began, did = read(journal)
        now, own = time.time(), self._launch(self._place, launch)
        about = self._about | {"tunefleet.launch": launch, "tunefleet.outcome": outcome}
        failure = (error or outcome) if outcome == "failed" else None
        self._say(Told("launch", own, self._place, began or now, now, about, failure))
        for number, each in enumerate(did):
            name = f"{each.name} {number} of {launch}"
            self._say(Told(each.name, own.span(name), own, each.start, each.end, self._about | dict(each.about)))

    def _say(self, told: Told) -> None:
        if self._spans is not None:
            self._spans.tell(told)

    def _launch(self, place: Place, launch: str) -> Place:
        return place.span(f"launch {launch}")


def read(journal: Path) -> tuple[float | None, list[Done]]:
    """Return when a launch began and what its trainer did, as far as the journal says it."""
    found = _Reading()
    try:
        with journal.open("rb") as lines:
            for line in lines:
                if found.wants(line):
                    found.take(line)
    except FileNotFoundError:
        pass
    return found.began, found.did


class _Reading:
    def __init__(self) -> None:
        self.began: float | None = None
        self.did: list[Done] = []
        self._stepped = False

    def wants(self, line: bytes) -> bool:
        """Whether a line may say something; most are points of a loss, and need not be parsed."""
        if not self._stepped or self.began is None:
            return True
        return len(self.did) < MOST_STEPS and (b'"checkpoint"' in line or b'"eval_runtime"' in line)

    def take(self, line: bytes) -> None:
        """Take a record."""
        try:
            record = json.loads(line)
            at, kind = float(record["at"]), record["type"]
            if kind == "launch":
                self.began = at
            self._step(at, record)
            if kind == "checkpoint":
                about = {"tunefleet.step": int(record["step"]), "tunefleet.size_bytes": int(record["size_bytes"])}
                self.did.append(Done("save", at - float(record.get("stall_s") or 0.0), at, about))
            elif kind == "metric" and _EVALUATED in record["values"]:
                took_s = float(record["values"][_EVALUATED])
                self.did.append(Done("evaluate", at - took_s, at, {"tunefleet.step": int(record["step"])}))
        except (ValueError, KeyError, TypeError):
            return

    def _step(self, at: float, record: dict[str, Any]) -> None:
        if self._stepped or self.began is None or record["type"] not in {"progress", "metric"}:
            return
        if int(record.get("step") or 0) > 0:
            self._stepped = True
            self.did.append(Done("first step", self.began, at, {"tunefleet.step": int(record["step"])}))
