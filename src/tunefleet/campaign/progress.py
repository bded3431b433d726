"""Progress of a step, stored about once a second: counted here, or taken from the tasks that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tunefleet.campaign.contract import StepContext
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.client.transfer import Progress as Transfer
from tunefleet.errors import TunefleetError
from tunefleet.schemas.api import TaskView
from tunefleet.schemas.campaign import Unit

log = logging.getLogger(__name__)

REPORT_S: Final = 1.0
# Unit of a task's steps, by kind.
_UNITS: Final[dict[str, Unit]] = {"data": "rows", "merge": "MiB", "lora_sft": "steps"}


@dataclass(slots=True)
class Counter:
    """A byte counter; thread-safe."""

    total: int | None = None
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, count: int) -> None:
        """Increase the expected total."""
        with self._lock:
            self.total = (self.total or 0) + count

    def add(self, count: int) -> None:
        """Increase the number of processed bytes."""
        with self._lock:
            self.done += count

    def follow(self, transfer: Transfer) -> None:
        """Take over the progress of a transfer."""
        with self._lock:
            self.done, self.total = transfer.done_bytes, transfer.total_bytes


@contextlib.asynccontextmanager
async def counted(
    context: StepContext, what: str, total: int | None = None, of: str | None = None
) -> AsyncIterator[Counter]:
    """Yield a byte counter, and report it while the block runs."""
    counter = Counter(total)

    async def report() -> None:
        while True:
            try:
                await context.repository.report(context.state, Activity(what, counter.done, counter.total, "bytes", of))
            except TunefleetError as error:
                # Progress is for display only: a transfer must not fail because of it.
                log.warning("[%s] Cannot store progress: %s", context.state.name, error)
            await asyncio.sleep(REPORT_S)

    reporter = asyncio.create_task(report(), name=f"progress of {context.state.name}")
    try:
        yield counter
    finally:
        reporter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporter


def of_tasks(tasks: Sequence[TaskView]) -> Activity | None:
    """Return the activity of the first running task, or of a queued one; None if there is none."""
    running = next((task for task in tasks if task.status == "running" and task.progress is not None), None)
    if running is not None:
        return of_task(running)
    queued = next((task for task in tasks if task.status == "queued"), None)
    return None if queued is None else Activity("waiting", of=queued.id)


def waits_in(tasks: Sequence[TaskView]) -> str | None:
    """Return why some tasks are queued; None while one of them is running, or none is queued."""
    if any(task.status == "running" for task in tasks):
        return None
    queued = next((task for task in tasks if task.status == "queued"), None)
    if queued is None:
        return None
    why = (queued.why or "").rstrip(".")
    text = f"for a worker: {queued.id} is queued" + (f" ({why})" if why else "")
    if not why.startswith("unschedulable"):
        return text
    return f"{text}; action required: `tunefleet why {queued.id}` shows what each worker lacks"


def of_task(task: TaskView) -> Activity | None:
    """Return the activity of a task; None if it has reported none."""
    reported = task.progress
    if reported is None:
        return None
    unit = _UNITS.get(task.kind) if reported.step or reported.max_steps else None
    return Activity(reported.phase, reported.step, reported.max_steps or None, unit, task.id)
