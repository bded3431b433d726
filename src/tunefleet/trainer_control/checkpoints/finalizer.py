"""Hashes and syncs checkpoints in the background, so that a save blocks training only while Hugging Face writes it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..distributed import world
from .commit import CheckpointCommit
from .manifest import Checkpoint, finish_checkpoint, hash_own_files, read_apart, step_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that was written and is to be finished.

    Args:
        stall_s: How long training was blocked by the save.
        commands: Ids of the commands that it completes.
        keep: Names of checkpoints that must be kept, such as the best one.
    """

    path: Path
    stall_s: float
    commands: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


class CheckpointFinalizer:
    """One thread that finishes checkpoints in the order in which they were saved.

    Args:
        before_manifest: Makes the journal durable, which must not be older than the checkpoint.
        on_durable: Called in the thread when a checkpoint has its manifest; on rank 0 only.
        on_failed: Called in the thread when a checkpoint could not be finished.
    """

    def __init__(
        self,
        before_manifest: Callable[[], None],
        on_durable: Callable[[SavedCheckpoint, Checkpoint], None],
        on_failed: Callable[[SavedCheckpoint, OSError], None],
        *,
        launch: str | None = None,
    ) -> None:
        self._before_manifest = before_manifest
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._launch = launch
        self._queue: queue.Queue[SavedCheckpoint] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._whole: dict[int, bool] = {}
        self._exchange: CheckpointCommit | None = None

    def join_ranks(self, exchange: CheckpointCommit | None) -> None:
        """Finish checkpoints together with other ranks from now on; None: without other ranks."""
        self.drain()
        self._exchange = exchange

    @property
    def alone(self) -> bool:
        """Whether this process finishes checkpoints without other ranks."""
        return self._exchange is None

    def submit(self, saved: SavedCheckpoint) -> None:
        """Take a checkpoint that this rank does not write to any more."""
        # A step that is saved again loses its old result.
        self._whole.pop(step_of(saved.path), None)
        self._queue.put(saved)
        if self._thread is None:
            # A daemon, so that it does not keep an aborted process alive.
            self._thread = threading.Thread(target=self._run, name="tunefleet-checkpoints", daemon=True)
            self._thread.start()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything submitted is finished; return False on a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # `Queue.join` has no timeout; this waits on the same condition.
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._queue.all_tasks_done.wait(left)
        return True

    def is_whole(self, step: int) -> bool:
        """Return whether this step's checkpoint is complete and has its manifest; the same on every rank."""
        return self._whole.get(step, False)

    def agree(self, yes: bool) -> bool:
        """Return rank 0's answer on every rank; all ranks call it while no checkpoint is being finished.

        Raises:
            PeerLostError: If rank 0 is lost.
        """
        exchange = self._exchange
        if exchange is None:
            return yes
        exchange.begin()
        if exchange.rank > 0:
            return exchange.await_result()
        exchange.announce(whole=yes)
        return yes

    def _run(self) -> None:
        while True:
            saved = self._queue.get()
            try:
                self._finish(saved)
            except Exception:
                # The thread must outlive one bad checkpoint: the next one may be valid.
                logger.exception("Finishing %s failed", saved.path.name)
            finally:
                self._queue.task_done()

    def _finish(self, saved: SavedCheckpoint) -> None:
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
                # Always, also after a failure: the other ranks wait for the result.
                exchange.announce(whole=checkpoint is not None)
        if checkpoint is not None:
            self._whole[checkpoint.step] = True
            self._on_durable(saved, checkpoint)

    def _complete(self, saved: SavedCheckpoint, exchange: CheckpointCommit | None) -> Checkpoint:
        hashed = None
        if exchange is not None:
            # Other ranks may still write their files, so those are not read before the rank has posted its digests.
            hashed = hash_own_files(saved.path, 0)
            hashed |= exchange.collect(saved.path)
        self._before_manifest()
        return finish_checkpoint(saved.path, hashed, launch=self._launch)

    def _contribute(self, saved: SavedCheckpoint, exchange: CheckpointCommit) -> None:
        try:
            hashed = hash_own_files(saved.path, exchange.rank)
            exchange.post(hashed, files=read_apart(saved.path, hashed) if world.node() else None)
        except OSError as error:
            exchange.post(None, str(error))
        self._whole[step_of(saved.path)] = exchange.await_result()
