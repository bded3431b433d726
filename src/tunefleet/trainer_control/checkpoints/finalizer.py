"""Hashes, syncs and names checkpoints in the background, so that a save costs the training only Hugging Face's part."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..distributed import world
from .commit import Exchange
from .manifest import Checkpoint, finish_checkpoint, hash_own_files, read_apart, step_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written and is to be finished.

    Args:
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
        on_durable: Called in the thread when a checkpoint has its manifest; on rank 0 only, as the next.
        on_failed: Called in the thread when one could not be finished.
    """

    def __init__(
        self,
        before_manifest: Callable[[], None],
        on_durable: Callable[[Saved, Checkpoint], None],
        on_failed: Callable[[Saved, OSError], None],
        *,
        launch: str | None = None,
    ) -> None:
        self._before_manifest = before_manifest
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._launch = launch
        self._queue: queue.Queue[Saved] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._whole: dict[int, bool] = {}
        self._exchange: Exchange | None = None

    def join_ranks(self, exchange: Exchange | None) -> None:
        """Finish checkpoints together with other ranks from now on; None finishes them alone."""
        self.drain()
        self._exchange = exchange

    @property
    def alone(self) -> bool:
        """Whether this process finishes checkpoints by itself."""
        return self._exchange is None

    def submit(self, saved: Saved) -> None:
        """Take a checkpoint that this rank writes to no more."""
        self._whole.pop(step_of(saved.path), None)
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

    def is_whole(self, step: int) -> bool:
        """Tell whether this step's checkpoint was finished and has its manifest; every rank gives the same answer."""
        return self._whole.get(step, False)

    def agree(self, yes: bool) -> bool:
        """Return what rank 0 says, on every rank; all of them call it, when nothing is being finished.

        Raises:
            PeerLostError: If rank 0 is gone.
        """
        exchange = self._exchange
        if exchange is None:
            return yes
        exchange.begin()
        if exchange.rank > 0:
            return exchange.verdict()
        exchange.announce(whole=yes)
        return yes

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
        exchange = self._exchange
        if exchange is not None:
            exchange.begin()
        if exchange is not None and exchange.rank > 0:
            self._contribute(saved, exchange)
            return
        checkpoint: Checkpoint | None = None
        try:
            checkpoint = self._complete(saved, exchange)
        except OSError as error:
            self._on_failed(saved, error)
        finally:
            if exchange is not None:
                exchange.announce(whole=checkpoint is not None)
        if checkpoint is not None:
            self._whole[checkpoint.step] = True
            self._on_durable(saved, checkpoint)

    def _complete(self, saved: Saved, exchange: Exchange | None) -> Checkpoint:
        hashed = None
        if exchange is not None:
            # Other ranks may still write their files: what is there of them is not looked at before they say so.
            hashed = hash_own_files(saved.path, 0)
            hashed |= exchange.collect(saved.path)
        self._before_manifest()
        return finish_checkpoint(saved.path, hashed, launch=self._launch)

    def _contribute(self, saved: Saved, exchange: Exchange) -> None:
        try:
            hashed = hash_own_files(saved.path, exchange.rank)
            exchange.post(hashed, files=read_apart(saved.path, hashed) if world.node() else None)
        except OSError as error:
            exchange.post(None, str(error))
        self._whole[step_of(saved.path)] = exchange.verdict()
