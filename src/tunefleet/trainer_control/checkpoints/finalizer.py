"""Makes checkpoints durable in the background: hashed and synced, with the digests and the result of all ranks.

The ranks agree in the thread that finishes checkpoints, over a store connection of its own. No rank acts on a
checkpoint (ends for a pause, reports it) before all ranks know whether it is complete.
"""

from __future__ import annotations

import base64
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..distributed import world
from ..distributed.tcp_store import StoreConnection
from .manifest import Checkpoint, Hashed, finish_checkpoint, hash_own_files, read_apart, step_of

_SEEN_S = 10.0
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


class RankFailedError(OSError):
    """Another rank could not finish its part of a checkpoint."""


class CheckpointCommit:
    """One training run's checkpoints, among its ranks.

    Args:
        connection: The connection to the other ranks.
    """

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._number = 0

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._connection.rank

    def begin(self) -> None:
        """Begin with the next checkpoint; all ranks process the same ones in the same order."""
        self._number += 1

    def post(
        self, hashed: Mapping[str, Hashed] | None, fault: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Publish what this rank has hashed, or why it could not.

        Args:
            fault: Why there are no digests.
            files: Content of the files, if rank 0 has another disk.
        """
        body: dict[str, Any] = {"hashed": hashed, "fault": fault, "files": {}}
        if files is not None:
            body["files"] = {name: base64.b64encode(data).decode() for name, data in files.items()}
        self._connection.set(f"{self._number}/{self.rank}", json.dumps(body).encode())

    def collect(self, folder: Path) -> dict[str, Hashed]:
        """Return what the other ranks have hashed; files from another disk are written into the folder.

        Raises:
            RankFailedError: If a rank could not hash its files.
            PeerLostError: If a rank is lost.
        """
        found: dict[str, Hashed] = {}
        for rank in range(1, self._connection.size):
            what = f"the digests of checkpoint {self._number}"
            body = json.loads(self._connection.wait_for(f"{self._number}/{rank}", (rank,), what))
            if body["hashed"] is None:
                raise RankFailedError(f"rank {rank}: {body['fault']}")
            for apart, text in body["files"].items():
                (folder / apart).write_bytes(base64.b64decode(text))
            found |= {name: (digest, size, changed) for name, (digest, size, changed) in body["hashed"].items()}
        return found

    def announce(self, *, whole: bool) -> None:
        """Publish whether the checkpoint is complete; return when all ranks have read it: this process may end then."""
        key = f"{self._number}/result"
        self._connection.set(key, b"1" if whole else b"0")
        # A rank that died meanwhile never reads the result, so the wait is bounded.
        deadline = time.monotonic() + _SEEN_S
        while self._connection.count(f"{self._number}/seen") < self._connection.size - 1:
            if time.monotonic() > deadline:
                logger.warning("Not every rank has read the result of checkpoint %d", self._number)
                return
            time.sleep(0.005)
        # The store lives as long as the run: keys of finished checkpoints would pile up.
        posted = (f"{self._number}/{rank}" for rank in range(1, self._connection.size))
        for name in (key, f"{self._number}/seen", *posted):
            self._connection.drop(name)

    def await_result(self) -> bool:
        """Wait for rank 0 to publish whether the checkpoint is complete.

        Raises:
            PeerLostError: If rank 0 is lost.
        """
        what = f"the result of checkpoint {self._number}"
        result = self._connection.wait_for(f"{self._number}/result", (0,), what)
        self._connection.count(f"{self._number}/seen", 1)
        return result == b"1"
