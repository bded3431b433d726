"""Carries commands out at the end of an optimizer step."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .board import SAVING, Command, CommandBoard
from .callback_checkpoint import CheckpointCallback
from .control import ControlServer
from .ranks import Decider, Solo, decider_for
from .session import JobSession

logger = logging.getLogger(__name__)

_DRAIN_ON_ABORT_S = 5.0


class ControlCallback(TrainerCallback):
    """Acts on the board's commands; without one it costs one attribute read a step.

    Args:
        session: What the job reports with.
        board: Where commands wait.
        server: Started with the training; None if the job cannot be reached.
        checkpoints: Asked to finish what was saved before an abort.
    """

    def __init__(
        self, session: JobSession, board: CommandBoard, server: ControlServer | None, checkpoints: CheckpointCallback
    ) -> None:
        self._session = session
        self._board = board
        self._server = server
        self._checkpoints = checkpoints
        self._decider: Decider = Solo(board)
        self._stopping = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the control port."""
        self._decider = decider_for(self._board)
        if not state.is_world_process_zero:
            return
        self._board.open()
        if self._server is None:
            return
        try:
            self._server.start()
        except OSError as error:
            # A training that cannot be steered is better than none; it can still be ended by a signal.
            logger.warning("The control port could not be opened: %s", error)
            self._session.journal.event("control.unavailable", f"The job cannot be steered: {error}", "warning")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Carry out what was asked for during the step."""
        for command in self._decider.due(state.global_step):
            self._act(command, state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let an abort end a long evaluation; everything else waits for the next step."""
        if self._board.armed and self._board.wants("abort"):
            self.on_step_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take back what an epoch's end would add after a stop: it would evaluate and save a second time."""
        if self._stopping:
            control.should_evaluate = False
            control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse further commands."""
        self._board.close("training had ended")

    def _act(self, command: Command, state: TrainerState, control: TrainerControl) -> None:
        step = int(state.global_step)
        saving = command.command in SAVING
        self._board.applied(command.command_id, step, saving=saving)
        if command.command == "abort":
            self._abort(step)
        if saving:
            control.should_save = True
        if command.command != "save_checkpoint":
            self._stopping = True
            control.should_training_stop = True
            self._intend_stop(step)
        message = f"{command.command} acts at the end of step {step}."
        self._session.journal.event("control.applied", message, data={"command_id": command.command_id, "step": step})

    def _intend_stop(self, step: int) -> None:
        try:
            self._session.status.write(intent="stop", step=step)
        except OSError as error:
            # It is remembered, and written with the next status that can be.
            logger.warning("The intent to stop could not be written down yet: %s", error)

    def _abort(self, step: int) -> NoReturn:
        """End the process here: the Trainer's end, and the script's own save after it, are skipped."""
        self._session.status.write(state="aborted", intent="abort", step=step)
        self._board.close("the training was aborted")
        self._session.journal.event("training.aborted", f"Aborted at the end of step {step}.", "warning")
        # What was saved before stays resumable; nothing new is saved.
        self._checkpoints.drain(_DRAIN_ON_ABORT_S)
        self._session.journal.sync()
        raise SystemExit(0)
