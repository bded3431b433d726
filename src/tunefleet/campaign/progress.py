"""How far a step is, told to the book about once a second; counted here, or taken over from the tasks that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tunefleet.campaign.contract import StepContext
from tunefleet.client.transfer import Progress as Transfer
from tunefleet.errors import TunefleetError
from tunefleet.orchestrator.campaigns.step_progress import Activity
from tunefleet.schemas.api import TaskView
from tunefleet.schemas.campaign import Unit

log = logging.getLogger(__name__)

TELL_S: Final = 1.0
# What the steps of such a task count.
_UNITS: Final[dict[str, Unit]] = {"data": "rows", "merge": "MiB", "lora_sft": "steps"}


@dataclass(slots=True)
class Counter:
    """Counts bytes, from any thread."""

    total: int | None = None
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, count: int) -> None:
        """Say that there are some more."""
        with self._lock:
            self.total = (self.total or 0) + count

    def add(self, count: int) -> None:
        """Count some that are done."""
        with self._lock:
            self.done += count

    def follow(self, transfer: Transfer) -> None:
        """Take over what a transfer says of itself."""
        with self._lock:
            self.done, self.total = transfer.done_bytes, transfer.total_bytes


@contextlib.asynccontextmanager
async def counted(
    context: StepContext, what: str, total: int | None = None, of: str | None = None
) -> AsyncIterator[Counter]:
    """Yield a counter of bytes, and tell what it says while the block runs."""
    counter = Counter(total)

    async def tell() -> None:
        while True:
            try:
                await context.book.report(context.state, Activity(what, counter.done, counter.total, "bytes", of))
            except TunefleetError as error:
                # It is for those who watch: what is moved does not fail for it.
                log.warning("[%s] how far it is could not be stored: %s", context.state.name, error)
            await asyncio.sleep(TELL_S)

    teller = asyncio.create_task(tell(), name=f"progress of {context.state.name}")
    try:
        yield counter
    finally:
        teller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await teller


def of_tasks(tasks: Sequence[TaskView]) -> Activity | None:
    """Return what the first of some tasks does that runs, or which one no worker has yet; null if none has said it."""
    running = next((task for task in tasks if task.status == "running" and task.progress is not None), None)
    if running is not None:
        return of_task(running)
    queued = next((task for task in tasks if task.status == "queued"), None)
    return None if queued is None else Activity("waiting", of=queued.id)


def waits_in(tasks: Sequence[TaskView]) -> str | None:
    """Return what some tasks wait for that no worker runs yet; null while one of them runs, or none is queued."""
    if any(task.status == "running" for task in tasks):
        return None
    queued = next((task for task in tasks if task.status == "queued"), None)
    if queued is None:
        return None
    why = (queued.why or "").rstrip(".")
    text = f"for a worker: {queued.id} is queued" + (f" ({why})" if why else "")
    if not why.startswith("unschedulable"):
        return text
    return f"{text}; needs you: `tunefleet why {queued.id}` shows what each worker lacks"


def of_task(task: TaskView) -> Activity | None:
    """Return what a task does; null if it has said nothing."""
    said = task.progress
    if said is None:
        return None
    unit = _UNITS.get(task.kind) if said.step or said.max_steps else None
    return Activity(said.phase, said.step, said.max_steps or None, unit, task.id)
