"""Carries out commands at the end of an optimizer step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..control.command_queue import ABORTED, SAVING, Command, CommandQueue
from ..control.control_server import ControlServer
from ..control.overrides import Overrides, RefusedChangeError
from ..distributed.step_agreement import Solo, StepCoordinator, coordinator_for
from ..preemption import SigtermPause
from ..session import JobSession
from .checkpoint_callback import CheckpointCallback
from .termination_callback import TerminationCallback

logger = logging.getLogger("tunefleet.control")

_DRAIN_ON_ABORT_S = 5.0
_STOPPING = ("graceful_stop", "save_and_stop")


class ControlCallback(TrainerCallback):
    """Carries out queued commands; costs one attribute read per step without one.

    Args:
        session: The job's session.
        board: The command queue.
        server: Started with the training run; None if it is started elsewhere, or not at all.
        checkpoints: Finishes saved checkpoints before an abort.
        ending: Ends the process after the save of a pause.
        overrides: Values changed by `set`; None uses the job folder's.
    """

    def __init__(
        self,
        session: JobSession,
        board: CommandQueue,
        server: ControlServer | None,
        checkpoints: CheckpointCallback,
        ending: TerminationCallback,
        overrides: Overrides | None = None,
    ) -> None:
        self._session = session
        self._board = board
        self._server = server
        self._checkpoints = checkpoints
        self._ending = ending
        self._overrides = overrides or Overrides(session.folder)
        self._decider: StepCoordinator = Solo(board)
        self._sigterm = SigtermPause(session, board)
        self._stopping = False
        self._must_save = False
        self._strategy: Any = None
        self._best: tuple[Any, Any] | None = None

    def listen(self, listener: Callable[[Command], None]) -> None:
        """Call `listener` with each command that is submitted or changes, in the thread that changes it."""
        self._board.listen(listener)

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Apply a `max_steps` that was set in an earlier launch."""
        self._overrides.at_init(args)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the control port; apply the values that were set in an earlier launch."""
        self._decider = coordinator_for(self._board)
        self._sigterm.begin(self._decider.broken)
        self._stopping = self._must_save = False
        self._overrides.at_begin(args, state, kwargs.get("lr_scheduler"))
        # Other ranks get their commands from rank 0.
        if not state.is_world_process_zero:
            return
        self._board.open()
        if self._server is None:
            return
        try:
            self._server.start()
        except OSError as error:
            # A training run without control is better than none; it can still be stopped by a signal.
            logger.warning("The control port could not be opened: %s", error)
            self._session.journal.event("control.unavailable", f"The job cannot be controlled: {error}", "warning")

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore what the previous evaluation must not have changed."""
        if self._best is not None:
            self._put_best_back(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Carry out the commands that arrived during the step."""
        # All ranks call this at every step, or they would act at different ones.
        commands = self._decider.due(state.global_step)
        if not commands:
            return
        scheduled = control.should_evaluate
        for command in commands:
            self._act(command, args, state, control, kwargs.get("lr_scheduler"))
        extra = control.should_evaluate and not scheduled and not control.should_save
        if extra and args.metric_for_best_model is not None and args.save_strategy != "best":
            # Nothing is saved here, so this step must not be recorded as the best: there would be no such checkpoint.
            self._best = (state.best_metric, getattr(state, "best_global_step", None))

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let an abort end a long evaluation; all other commands wait for the next step."""
        if self._board.armed and self._board.wants("abort"):
            self.on_step_end(args, state, control, **kwargs)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep `save_strategy="best"` from dropping a requested save because the step is not the best one."""
        if self._must_save and args.save_strategy == "best":
            self._strategy = args.save_strategy
            args.save_strategy = type(args.save_strategy)("steps")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore the training run's own strategy."""
        self._must_save = False
        if self._strategy is not None:
            args.save_strategy, self._strategy = self._strategy, None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Undo what the end of an epoch adds after a stop: it would evaluate and save a second time."""
        if self._best is not None:
            self._put_best_back(state)
        if self._stopping:
            control.should_evaluate = False
            control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reject further commands."""
        self._sigterm.end()
        self._board.close("training had ended")

    def _act(
        self, command: Command, args: TrainingArguments, state: TrainerState, control: TrainerControl, scheduler: Any
    ) -> None:
        step, name = int(state.global_step), command.command
        try:
            message = self._change(command, args, state, control, scheduler) if name == "set" else None
            if name == "evaluate":
                _check_evaluation(args)
        except RefusedChangeError as refusal:
            logger.warning("%s is refused: %s", name, refusal)
            self._board.failed(command.command_id, str(refusal))
            self._session.journal.event("control.refused", f"{name} is refused: {refusal}", "warning")
            return
        self._board.applied(command.command_id, step, saving=name in SAVING, message=message)
        if name == "abort":
            self._abort(step)
        if name in SAVING:
            control.should_save = self._must_save = True
        if name == "evaluate" or (name in ("save_checkpoint", "save_and_stop") and _tracks_best(args)):
            control.should_evaluate = True
        if name in _STOPPING:
            self._stopping = True
            control.should_training_stop = True
            self._intend_stop(step)
        if name == "pause":
            self._ending.intend(command.command_id, step)
        logger.info("%s acts at the end of step %d", name, step)
        data = {"command_id": command.command_id, "step": step}
        self._session.journal.event("control.applied", f"{name} acts at the end of step {step}.", data=data)

    def _change(
        self, command: Command, args: TrainingArguments, state: TrainerState, control: TrainerControl, scheduler: Any
    ) -> str | None:
        self._overrides.change(command.data, args, state, control, scheduler)
        if not state.is_world_process_zero:
            return None
        try:
            self._overrides.keep(command.data)
        except OSError as error:
            logger.warning("The change could not be recorded: %s", error)
            return f"applies to this launch only, it could not be recorded: {error}"
        later = command.data.get("max_steps") or 0
        return f"max_steps {later} applies from the next resume on" if later > state.max_steps else None

    def _put_best_back(self, state: TrainerState) -> None:
        best, self._best = self._best, None
        if best is not None:
            state.best_metric = best[0]
            if hasattr(state, "best_global_step"):
                state.best_global_step = best[1]

    def _intend_stop(self, step: int) -> None:
        try:
            self._session.status.write(intent="stop", phase="stopping", step=step)
        except OSError as error:
            # The value is kept in memory, and written with the next status that can be written.
            logger.warning("The intent to stop could not be recorded yet: %s", error)

    def _abort(self, step: int) -> NoReturn:
        """End the process here: the Trainer's end, and the script's own save after it, are skipped."""
        logger.info("abort ends the training at the end of step %d", step)
        try:
            self._session.status.write(state="aborted", intent="abort", step=step)
        except OSError as error:
            # A full disk must not keep a training run going that is to be aborted.
            logger.warning("The abort could not be recorded: %s", error)
        # After the status, so that a client whose command is refused finds the final state.
        self._board.close("the training was aborted")
        self._session.journal.event("training.aborted", f"Aborted at the end of step {step}.", "warning")
        # What was saved before stays resumable; nothing new is saved.
        self._checkpoints.drain(_DRAIN_ON_ABORT_S)
        try:
            self._session.journal.sync()
        except OSError as error:
            logger.warning("The journal could not be synced: %s", error)
        raise SystemExit(ABORTED)


def _tracks_best(args: TrainingArguments) -> bool:
    return bool(args.load_best_model_at_end) and args.eval_strategy != "no"


def _check_evaluation(args: TrainingArguments) -> None:
    if args.eval_strategy == "no":
        raise RefusedChangeError("the training has no evaluation (eval_strategy is 'no').")
