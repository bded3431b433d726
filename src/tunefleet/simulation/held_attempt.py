"""An attempt held by a simulated worker: its timer, its journal and its record."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.worker_link import Finish, FinishOutcome, JournalBatch, Offer

# Seconds between journal deliveries, like the batches of a real worker.
EVERY_S = 1.0


class Trace(NamedTuple):
    """Record of an attempt; times of the monotonic clock, `None` for events that did not happen."""

    task_id: str
    attempt: int
    offered_at: float
    accepted_at: float | None
    finished_at: float | None
    outcome: FinishOutcome | None


@dataclass(slots=True)
class HeldAttempt:
    """An attempt and its state."""

    offer: Offer
    runs_s: float
    offered_at: float = field(default_factory=time.monotonic)
    accepted_at: float | None = None
    finish: Finish | None = None
    shipped: int = 0
    clock: asyncio.TimerHandle | None = None
    journal: asyncio.Task[None] | None = None

    @property
    def launch(self) -> str:
        """Id of the only launch of this attempt."""
        return f"sim-{self.offer.attempt}"

    def start(self, when_over: Callable[[], None]) -> None:
        """Start the timer of the run."""
        self.clock = asyncio.get_running_loop().call_later(self.runs_s, when_over)

    def cancel(self) -> None:
        """Cancel its timer and journal."""
        if self.clock is not None:
            self.clock.cancel()
        if self.journal is not None:
            self.journal.cancel()

    def ended(self, outcome: FinishOutcome, reason: TaskReason) -> Finish:
        """Set its end; only the first call counts."""
        if self.finish is None:
            result = {"simulated": True, "runs_s": round(self.runs_s, 3)} if outcome == "completed" else {}
            cursors = {self.launch: self.shipped} if self.shipped else {}
            self.finish = Finish(token=self.offer.token, outcome=outcome, reason=reason, result=result, cursors=cursors)
        return self.finish

    def batch(self, per_s: float, *, now: float) -> JournalBatch | None:
        """Return the journal records that are due; None if there are none."""
        began = self.accepted_at if self.accepted_at is not None else now
        # The first record describes the launch.
        due = 1 + int(min(now - began, self.runs_s) * per_s)
        if due <= self.shipped:
            return None
        lines = tuple(self._record(seq) for seq in range(self.shipped, due))
        return JournalBatch(launch=self.launch, from_seq=self.shipped, lines=lines)

    def _record(self, seq: int) -> str:
        about = {"seq": seq, "at": time.time()}
        if seq == 0:
            return json.dumps({**about, "type": "launch", "launch": self.launch, "attempt": self.offer.attempt})
        values = {"loss": 0.5 + 2.0 * math.exp(-seq / 50), "learning_rate": 2e-4, "grad_norm": 1.0, "epoch": seq / 100}
        return json.dumps({**about, "type": "metric", "step": seq, "window": [seq, seq], "values": values})

    def trace(self, finished_at: float | None) -> Trace:
        """Return its record."""
        outcome = None if self.finish is None or finished_at is None else self.finish.outcome
        accepted_at = self.accepted_at if self.accepted_at is not None else finished_at
        return Trace(self.offer.task_id, self.offer.attempt, self.offered_at, accepted_at, finished_at, outcome)
