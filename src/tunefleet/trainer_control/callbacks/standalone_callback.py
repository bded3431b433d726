"""`TrainerControlCallback`: control for any Hugging Face Trainer, without any other part of Tunefleet."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..control.command_queue import CommandQueue
from ..control.discovery import sanitized_job_id
from ..control.overrides import Overrides
from ..standalone import StandaloneJob, StandaloneOptions, null_session
from .checkpoint_callback import CheckpointCallback
from .factory import assemble

logger = logging.getLogger("tunefleet.control")

_DRAIN_BEFORE_SAVE_S = 30.0
_PASSED_ON = (
    "on_train_begin", "on_step_begin", "on_step_end", "on_log", "on_prediction_step", "on_evaluate", "on_save",
    "on_epoch_end", "on_train_end",
)  # fmt: skip
_Call = Callable[..., Any]


class TrainerControlCallback(TrainerCallback):
    """Controls a training run from outside: `tunefleet control`, curl, or files.

    Serves HTTP on loopback from the construction of the Trainer to the end of the process, and publishes the job in
    `~/.tunefleet/jobs/<job_id>/` (`TUNEFLEET_JOBS_DIR` moves it). A failure in here never ends the training run. With
    several ranks, rank 0 listens and all ranks act at the same step.

    Checkpoints get a manifest, which is what `durable` means, but none is deleted: `save_total_limit` stays with the
    Trainer. `status.json` and `commands.json` stay after the process ends; `tunefleet control cleanup` removes them.

    Args:
        job_id: Name of the job. Characters that a file name cannot have are replaced; while another job of that id is
            running, this one is `<job_id>-2`. Default: machine, time and process.
        port: Port of the control server; None lets the system choose. If it is in use, commands are files.
        host: Host name in the endpoint. The server is bound to loopback in any case.
        enable_http: Whether to open a port; without one, commands are files in `control/`.
        cleanup_on_exit: Whether to remove the endpoint when the process ends; if False, it stays, with the end time.
        token: `auto` creates one; None disables it. A process of the same user needs none.
        journal: Whether to keep a journal and the status in a job folder; True uses `./tunefleet-runs/<job_id>`, a path
            that folder.

    Raises:
        ValueError: If the job id has no character that a file name can have.
    """

    def __init__(
        self,
        job_id: str | None = None,
        port: int | None = None,
        host: str = "localhost",
        enable_http: bool = True,
        cleanup_on_exit: bool = True,
        token: str | None = "auto",
        *,
        journal: bool | str | os.PathLike[str] = False,
    ) -> None:
        sanitized_job_id(job_id)
        self._options = StandaloneOptions(job_id, port, host, enable_http, cleanup_on_exit, token, journal)
        self._job: StandaloneJob | None = None
        self._opened = False
        self._overrides = Overrides(always=False)
        self._calls: dict[str, list[_Call]] = {}
        self._checkpoints: CheckpointCallback | None = None
        self._logged_failure = False

    @property
    def job_id(self) -> str | None:
        """The id of the job; None before the Trainer is built, and on ranks that do not listen."""
        return self._job.job_id if self._job else None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Make the job discoverable while it loads."""
        self._overrides.set_folder(args.output_dir)
        self._overrides.at_init(args)
        # Already here, so that the job can be found while the dataset is tokenized.
        self._open(state)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start to act on commands."""
        self._open(state)
        self._overrides.set_folder(args.output_dir)
        try:
            session = self._job.begin(state.global_step, args.output_dir) if self._job else null_session()
        except OSError as error:
            logger.warning("The journal cannot be written, so the training run cannot be controlled: %s", error)
            session = null_session()
        if not self._calls:
            board = self._job.board if self._job else CommandQueue()
            parts = assemble(session, board, None, self._overrides, retention=False)
            self._checkpoints = next(part for part in parts if isinstance(part, CheckpointCallback))
            self._calls = {event: _doing(event, parts) for event in _PASSED_ON}
        self._each("on_train_begin", args, state, control, kwargs)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Carry out the commands that arrived during the step."""
        try:
            for call in self._calls.get("on_step_end", ()):
                call(args, state, control, **kwargs)
        except Exception as error:  # noqa: BLE001 - logged by _log_failure; a failure of ours must not end a training run
            self._log_failure("on_step_end", error)
        if control.should_save:
            self._before_save(args)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forward the event."""
        self._each("on_epoch_end", args, state, control, kwargs)
        if control.should_save:
            self._before_save(args)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reject further commands, and record the end."""
        self._each("on_train_end", args, state, control, kwargs)
        try:
            if self._job is not None:
                self._job.end()
        except OSError as error:
            logger.warning("The end of the training run could not be recorded: %s", error)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forward the event.

        Not by `_each`: this runs at every step, and each further function call costs cache misses.
        """
        for call in self._calls.get("on_step_begin", ()):
            try:
                call(args, state, control, **kwargs)
            except Exception as error:  # noqa: BLE001 - as above
                self._log_failure("on_step_begin", error)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Forward the event."""
        self._each("on_log", args, state, control, kwargs)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forward the event."""
        self._each("on_prediction_step", args, state, control, kwargs)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Forward the event."""
        self._each("on_evaluate", args, state, control, kwargs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Forward the event."""
        self._each("on_save", args, state, control, kwargs)

    def _open(self, state: TrainerState) -> None:
        if self._opened or not state.is_world_process_zero:
            return
        self._opened = True
        try:
            self._job = StandaloneJob.open(self._options)
        except OSError as error:
            logger.warning("The training run cannot be controlled: %s", error)

    def _each(self, event: str, args: Any, state: Any, control: Any, kwargs: dict[str, Any]) -> None:
        for call in self._calls.get(event, ()):
            try:
                call(args, state, control, **kwargs)
            except Exception as error:  # noqa: BLE001 - as above
                self._log_failure(event, error)

    def _log_failure(self, event: str, error: Exception) -> None:
        """Log the first failure of our own callbacks; a requested end (SystemExit) is not an Exception."""
        if not self._logged_failure:
            logger.error("Control failed in %s; the training run continues", event, exc_info=error)
        self._logged_failure = True

    def _before_save(self, args: TrainingArguments) -> None:
        # The Trainer's own rotation runs in the save: earlier checkpoints should be complete by then.
        if self._checkpoints is not None and args.save_total_limit is not None:
            self._checkpoints.drain(_DRAIN_BEFORE_SAVE_S)


def _doing(event: str, parts: list[TrainerCallback]) -> list[_Call]:
    """Return the handlers of an event: a callback without one is not called at every step."""
    # Every callback inherits an empty handler, which would be called at every step.
    nothing = getattr(TrainerCallback, event)
    return [getattr(part, event) for part in parts if getattr(type(part), event) is not nothing]
