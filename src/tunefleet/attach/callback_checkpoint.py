"""Gives checkpoints their manifest and takes over their retention."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .board import CommandBoard
from .checkpoints import Checkpoint, retain
from .finisher import CheckpointFinisher, Saved
from .session import JobSession

logger = logging.getLogger(__name__)


class CheckpointCallback(TrainerCallback):
    """Finishes each checkpoint in the background, and deletes old ones only after a newer one is durable.

    Hugging Face's own rotation would run before a new checkpoint is known to be whole, so `args.save_total_limit` is
    taken and set to None when a training begins.

    Args:
        session: What the job reports with.
        board: Where commands that asked for a save learn that it is durable.
    """

    def __init__(self, session: JobSession, board: CommandBoard) -> None:
        self._session = session
        self._board = board
        self._limit: int | None = None
        self._saved_step = -1
        self._save_began = 0.0
        self._finisher = CheckpointFinisher(session.journal.sync, self._durable, self._failed)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the limit from the Trainer."""
        if args.save_total_limit is not None:
            self._limit = args.save_total_limit
            args.save_total_limit = None
        self._saved_step = -1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note when a save may begin."""
        if control.should_save:
            self._save_began = time.monotonic()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Do not count an evaluation as part of the save after it."""
        self._save_began = time.monotonic()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save a step once: writing into a folder that is being hashed would break its manifest."""
        if self._saved_step == state.global_step:
            control.should_save = False
        self._save_began = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Hand the folder to the background thread."""
        if not state.is_world_process_zero or args.output_dir is None:
            return
        self._saved_step = state.global_step
        best = (Path(state.best_model_checkpoint).name,) if state.best_model_checkpoint else ()
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        stall_s = time.monotonic() - self._save_began
        self._finisher.submit(Saved(path, stall_s, tuple(self._board.take_saving()), best))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until every checkpoint is durable: the process may end after this."""
        self._finisher.drain()

    def drain(self, timeout_s: float) -> bool:
        """Wait for the checkpoints that are being finished; False if the time was over before."""
        return self._finisher.drain(timeout_s)

    def _durable(self, saved: Saved, checkpoint: Checkpoint) -> None:
        name = checkpoint.path.name
        self._session.journal.checkpoint(
            checkpoint.step, name, checkpoint.digest, checkpoint.size_bytes, round(saved.stall_s, 4)
        )
        for command_id in saved.commands:
            self._board.durable(command_id, name)
        deleted = retain(checkpoint.path.parent, limit=self._limit, keep=saved.keep)
        if deleted:
            logger.info("Deleted after %s: %s", name, ", ".join(deleted))

    def _failed(self, saved: Saved, error: OSError) -> None:
        message = f"{saved.path.name} could not be finished and will not be resumed from: {error}"
        logger.error(message)
        self._session.journal.event("checkpoint.failed", message, "error")
        for command_id in saved.commands:
            self._board.failed(command_id, message)
