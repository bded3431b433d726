"""Hashes, syncs and names checkpoints in the background, so that a save costs the training only Hugging Face's part."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .checkpoints import Checkpoint, finish_checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written and is to be finished.

    Args:
        path: Its folder.
        stall_s: How long the training stood still for it.
        commands: Ids of the commands that it answers.
        keep: Names of checkpoints that must outlive it, such as the best one.
    """

    path: Path
    stall_s: float
    commands: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


class CheckpointFinisher:
    """One thread that finishes checkpoints in the order in which they were saved.

    Args:
        before_manifest: Makes durable what must not be younger than the checkpoint: the journal.
        on_durable: Called in the thread when a checkpoint has its manifest.
        on_failed: Called in the thread when one could not be finished.
    """

    def __init__(
        self,
        before_manifest: Callable[[], None],
        on_durable: Callable[[Saved, Checkpoint], None],
        on_failed: Callable[[Saved, OSError], None],
    ) -> None:
        self._before_manifest = before_manifest
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._queue: queue.Queue[Saved] = queue.Queue()
        self._thread: threading.Thread | None = None

    def submit(self, saved: Saved) -> None:
        """Take a checkpoint that nobody writes to any more."""
        self._queue.put(saved)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tunefleet-checkpoints", daemon=True)
            self._thread.start()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything submitted is finished; return False if the time was over before."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._queue.all_tasks_done.wait(left)
        return True

    def _run(self) -> None:
        while True:
            saved = self._queue.get()
            try:
                self._finish(saved)
            except Exception:
                # The thread must outlive one bad checkpoint: the next may be good.
                logger.exception("Finishing %s failed", saved.path.name)
            finally:
                self._queue.task_done()

    def _finish(self, saved: Saved) -> None:
        try:
            self._before_manifest()
            checkpoint = finish_checkpoint(saved.path)
        except OSError as error:
            self._on_failed(saved, error)
            return
        self._on_durable(saved, checkpoint)
