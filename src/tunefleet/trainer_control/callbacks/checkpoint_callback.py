"""Gives checkpoints their manifest and takes over their retention."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..checkpoints.finalizer import CheckpointCommit, CheckpointFinalizer, SavedCheckpoint
from ..checkpoints.manifest import Checkpoint
from ..checkpoints.resume import protected_names, retain
from ..control.command_queue import CommandQueue
from ..distributed import world
from ..distributed.step_agreement import SaveBarrier
from ..distributed.tcp_store import open_connection
from ..session import JobSession

logger = logging.getLogger(__name__)

# Hashing and syncing a large checkpoint on a slow disk takes minutes.
_PATIENCE_S = 600.0
_RANKS_PATIENCE_S = 20.0
"""After a failure other ranks may be gone, and a checkpoint that is theirs, too, will not be finished."""


class CheckpointCallback(TrainerCallback):
    """Finishes each checkpoint in the background, and deletes old ones only after a newer one is durable.

    Hugging Face's own rotation would run before a new checkpoint is known to be complete, so `args.save_total_limit` is
    taken over and set to None when a training run begins.

    Args:
        session: The job's session.
        board: Completes the commands that requested a save once it is durable.
        retention: Whether to take over the deletion; without it the Trainer's own rotation is left as it is.
    """

    def __init__(self, session: JobSession, board: CommandQueue, *, retention: bool = True) -> None:
        self._session = session
        self._board = board
        self._retention = retention
        self._barrier: SaveBarrier | None = None
        self._limit: int | None = None
        self._saved_step = -1
        self._save_began = 0.0
        self._finisher = CheckpointFinalizer(self._settle, self._durable, self._failed, launch=session.journal.launch)
        session.before_end.append(self._settle_failure)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take over the limit, find the best checkpoint again, and connect to the other ranks."""
        if self._retention and args.save_total_limit is not None:
            self._limit = args.save_total_limit
            args.save_total_limit = None
        self._saved_step = -1
        _find_best(args, state)
        self._barrier = None
        if world.size() > 1 and world.distributed() is not None:
            connection = open_connection("checkpoints")
            self._finisher.join_ranks(CheckpointCommit(connection) if connection is not None else None)
            self._barrier = SaveBarrier() if connection is None else None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record when a save may begin."""
        if control.should_save:
            self._save_began = time.monotonic()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Exclude an evaluation from the duration of the save after it."""
        self._save_began = time.monotonic()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save a step only once: writing into a folder that is being hashed would break its manifest."""
        if self._saved_step == state.global_step:
            control.should_save = False
        self._save_began = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Hand the folder over to the background thread."""
        self._saved_step = state.global_step
        if self._barrier is not None:
            self._barrier.wait()  # without a store, the barrier is what shows that all ranks have written
        if args.output_dir is None or (self._finisher.alone and world.rank() > 0):
            return
        best = (Path(state.best_model_checkpoint).name,) if state.best_model_checkpoint else ()
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        stall_s = time.monotonic() - self._save_began
        # Hashing and syncing happen in the background, so that training continues immediately.
        self._finisher.submit(SavedCheckpoint(path, stall_s, tuple(self._board.take_saving()), best))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until every checkpoint is durable: the process may end after this."""
        self._finisher.drain()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait for the checkpoints that are being finished; False on a timeout."""
        return self._finisher.drain(timeout_s)

    def settle(self, step: int) -> bool:
        """Wait until it is known whether a step's checkpoint is complete; all ranks call it and get the same answer.

        Args:
            step: A step whose `on_save` was handled.

        Returns:
            True if it has its manifest and can be resumed from; False if it could not be finished.
        """
        self._finisher.drain()
        whole = self._finisher.is_whole(step)
        return whole if self._barrier is None else self._barrier.tell(whole=whole)

    def agree(self, yes: bool) -> bool:
        """Return rank 0's answer on every rank; all ranks call it after `settle`."""
        return self._finisher.agree(yes) if self._barrier is None else self._barrier.tell(whole=yes)

    def _settle_failure(self) -> None:
        if not self.drain(_PATIENCE_S if self._finisher.alone else _RANKS_PATIENCE_S):
            logger.warning("A saved checkpoint was not finished and cannot be resumed from")

    def _settle(self) -> None:
        for wait in self._session.before_manifest:
            wait()
        # What a resume relies on must be on disk before the manifest that makes the checkpoint resumable.
        self._session.journal.sync()

    def _durable(self, saved: SavedCheckpoint, checkpoint: Checkpoint) -> None:
        name = checkpoint.path.name
        self._session.journal.checkpoint(
            checkpoint.step, name, checkpoint.digest, checkpoint.size_bytes, round(saved.stall_s, 4)
        )
        for command_id in saved.commands:
            self._board.durable(command_id, name)
        deleted: list[str] = []
        if self._retention:
            # By name as well: in a user's folder, another run's checkpoint of a later step may look newer.
            keep = (name, *saved.keep, *protected_names(self._session.folder))
            deleted = retain(checkpoint.path.parent, limit=self._limit, keep=keep)
        if deleted:
            logger.info("Deleted after %s: %s", name, ", ".join(deleted))

    def _failed(self, saved: SavedCheckpoint, error: OSError) -> None:
        message = f"{saved.path.name} could not be finished and cannot be resumed from: {error}"
        logger.error(message)
        self._session.journal.event("checkpoint.failed", message, "error")
        for command_id in saved.commands:
            self._board.failed(command_id, message)


def _find_best(args: TrainingArguments, state: TrainerState) -> None:
    """Point a resumed training run at its best checkpoint in this folder: the path in the checkpoint is absolute.

    One that was not transferred can neither be delivered nor beaten: then the best of the following ones counts. Of
    several nodes only the first has it, and all ranks must use the same value.
    """
    if state.best_metric is None or args.output_dir is None:
        return
    step = getattr(state, "best_global_step", None)
    name = Path(state.best_model_checkpoint).name if state.best_model_checkpoint else f"checkpoint-{step}"
    local = Path(args.output_dir) / name
    if local.is_dir():
        state.best_model_checkpoint = str(local)
    elif world.node() is None and (
        state.best_model_checkpoint is None or not Path(state.best_model_checkpoint).is_dir()
    ):
        logger.warning("The best checkpoint so far, %s, is missing; the best of the later ones counts", name)
        state.best_model_checkpoint = state.best_metric = None
        if step is not None:
            state.best_global_step = None
