"""Ends the process of a paused training run once its checkpoint is durable.

`on_save` waits for the checkpoint. Only when it is durable does the loop stop, and the process ends at the loop's next
event: other callbacks have finished their own `on_save` then, while the Trainer's end (which may delete checkpoints or
load another model) and the rest of the script never run.
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..control.command_queue import CommandQueue
from ..preemption import PREFIX
from ..session import JobSession
from .checkpoint_callback import CheckpointCallback

logger = logging.getLogger("tunefleet.control")


class TerminationCallback(TrainerCallback):
    """Comes last among our callbacks. If a pause's checkpoint fails, the pause fails and the training run continues.

    Args:
        session: The job's session.
        board: Holds the command that requested the pause.
        checkpoints: Reports whether the checkpoint is complete.
    """

    def __init__(self, session: JobSession, board: CommandQueue, checkpoints: CheckpointCallback) -> None:
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
        # Only rank 0 writes: if it stayed while the others exit, it would wait for them for ever.
        if not self._checkpoints.agree(fault is None):
            self._give_up(f"the pause could not be recorded: {fault or 'see rank 0'}")
            return
        # Before the loop stops: later commands would have no effect.
        self._board.close("the training was paused")
        self._ended = True
        control.should_training_stop = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Fail a pause whose save never happened."""
        if self._command_ids:
            self._leave()
            self._give_up("nothing was saved")

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Exit: the loop gets here first when it stops."""
        self._leave()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Exit, if a loop gets here first."""
        if self._ended:  # checked inline: it may be every step, and a further call costs cache misses
            self._leave()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Exit, if a loop gets here first."""
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
        logger.error("The pause failed: %s; the training run continues", reason)
        self._session.journal.event("control.failed", f"The pause failed: {reason}. The run continues.", "error")
        self._session.status.update(phase="training")
        for command_id in self._command_ids:
            item = self._board.state(command_id)
            if item is not None and item.state != "failed":
                self._board.failed(command_id, reason)
        self._command_ids.clear()
