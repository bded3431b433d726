"""Ends the process of a training that was paused, once its checkpoint can be relied on.

The checkpoint is waited for in `on_save`. Only when it is durable is the loop told to stop, and the process ends at
the loop's next event: whatever other callbacks do in their own `on_save` has been done then, while the Trainer's end
(which may delete checkpoints or load another model) and what the script does after it never come.
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..control.command_queue import CommandBoard
from ..preemption import PREFIX
from ..session import JobSession
from .checkpoint_callback import CheckpointCallback

logger = logging.getLogger("tunefleet.control")


class EndingCallback(TrainerCallback):
    """Stands last among our callbacks. A pause whose checkpoint fails has failed, and the training goes on.

    Args:
        session: What the job reports with.
        board: Holds the command that asked for the pause.
        checkpoints: Says whether the checkpoint is whole.
    """

    def __init__(self, session: JobSession, board: CommandBoard, checkpoints: CheckpointCallback) -> None:
        self._session = session
        self._board = board
        self._checkpoints = checkpoints
        self._command_ids: list[str] = []
        self._ended = False

    def intend(self, command_id: str, step: int) -> None:
        """End the process after the save of this step; called at its end, on every rank."""
        self._command_ids.append(command_id)
        self._session.status.update(phase="pausing", step=step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Wait for the checkpoint; if it is durable, record the pause and stop the loop."""
        if not self._command_ids:
            return
        step = int(state.global_step)
        if not self._checkpoints.settle(step):
            self._give_up(f"the checkpoint of step {step} could not be finished")
            return
        fault = self._write_down(step)
        # Only rank 0 writes: were it to stay where the others leave, it would wait for them for ever.
        if not self._checkpoints.agree(fault is None):
            self._give_up(f"the pause could not be written down: {fault or 'rank 0 says why'}")
            return
        self._board.close("the training was paused")
        self._ended = True
        control.should_training_stop = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notice a pause whose save never came."""
        if self._command_ids:
            self._leave()
            self._give_up("nothing was saved")

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave: the loop comes here first when it stops."""
        self._leave()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave, should a loop come here first."""
        if self._ended:  # asked here: it may be each step, and one call more comes from memory again
            self._leave()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave, should a loop come here first."""
        self._leave()

    def _write_down(self, step: int) -> OSError | None:
        try:
            self._session.journal.event("training.paused", f"Paused at the end of step {step}.", data={"step": step})
            self._session.journal.sync()
            intent = "preempt" if all(name.startswith(PREFIX) for name in self._command_ids) else "pause"
            self._session.status.write(state="paused", intent=intent, step=step)
        except OSError as error:
            return error
        return None

    def _leave(self) -> None:
        if self._ended:
            logger.info("The training is paused; the process ends")
            raise SystemExit(0)

    def _give_up(self, reason: str) -> None:
        logger.error("The pause failed: %s; the training goes on", reason)
        self._session.journal.event("control.failed", f"The pause failed: {reason}. The training goes on.", "error")
        self._session.status.update(phase="training")
        for command_id in self._command_ids:
            item = self._board.state(command_id)
            if item is not None and item.state != "failed":
                self._board.failed(command_id, reason)
        self._command_ids.clear()
