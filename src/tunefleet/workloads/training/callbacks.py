"""Callbacks of every training run: control, journal, checkpoints, divergence detection, trackers."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, Final, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunefleet import trainer_control
from tunefleet.observability.step_line import step_line
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.checkpoints.manifest import supersede_beyond
from tunefleet.trainer_control.checkpoints.resume import protected_names
from tunefleet.workloads.faults import DivergedError
from tunefleet.workloads.training import participation
from tunefleet.workloads.training.arguments import tensorboard
from tunefleet.workloads.training.checkpoint_compression import CompressionCallback
from tunefleet.workloads.training.launch import Launch, SpecT

_REWARD_TASKS: Final = ("grpo", "ppo", "rloo")
# Losses that the median is taken of.
_HISTORY = 100
# Fewer logged losses have no reliable median: the first steps of a run vary too much.
_MIN_HISTORY = 20
# A loss is high above both three times the median and one nat over it; near zero the ratio alone is noise.
_TIMES = 3.0
_NATS = 1.0
# Single spikes recover on their own; this many high losses in a row do not.
_MAX_HIGH_IN_A_ROW = 10


def common_callbacks(launch: Launch[SpecT]) -> list[TrainerCallback]:
    """Return the callbacks of every training run; none of them depends on the trainer."""
    spec, folder = launch.spec, launch.folder.root
    control = trainer_control.callbacks_for_job(folder)
    # Federation first: its files must be in a checkpoint before the control callbacks hash it.
    callbacks: list[TrainerCallback] = [*participation.callbacks(launch, control), *control]
    if spec.checkpoint.compress == "zstd":
        callbacks.append(CompressionCallback(lambda name: name in protected_names(folder, ("uploading",))))
    callbacks.append(DivergenceCallback(spec.on_nan, launch.session, climbs=spec.task_type not in _REWARD_TASKS))
    if "tensorboard" in spec.training.trackers and launch.session.leads:
        callbacks.append(tensorboard(folder / "tensorboard"))
    return callbacks


class StepPrinter(TrainerCallback):
    """Prints what the Trainer logs as one readable line a step; the journal has all values."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the logged values."""
        if logs and state.is_world_process_zero:
            print(step_line(logs, state.global_step, state.max_steps), flush=True)


Policy = Literal["stop", "rollback", "ignore"]


class LossRise:
    """Detects a loss that rises far above its median and stays there."""

    def __init__(self) -> None:
        # High losses are not added: they would raise the median that they are compared with.
        self._normal: deque[float] = deque(maxlen=_HISTORY)
        self._since: int | None = None
        self._count = 0

    def add(self, step: int, loss: float) -> int | None:
        """Add a loss; return the step of the first high loss once enough of them came in a row."""
        usual = statistics.median(self._normal) if len(self._normal) >= _MIN_HISTORY else None
        if usual is None or loss <= max(_TIMES * usual, usual + _NATS):
            self._normal.append(loss)
            self._since, self._count = None, 0
            return None
        self._since = step if self._since is None else self._since
        self._count += 1
        return self._since if self._count >= _MAX_HIGH_IN_A_ROW else None


class DivergenceCallback(TrainerCallback):
    """Ends a diverged training run, or reports the divergence once.

    A save forces a log before it, so no checkpoint is written of weights whose loss was NaN or infinite.

    Args:
        climbs: Whether a rising loss counts as divergence. With reward-based methods the loss does not measure the
            quality of the answers and may rise.
    """

    def __init__(self, policy: Policy, session: JobSession, *, climbs: bool = True) -> None:
        self._policy = policy
        self._session = session
        self._journal = session.journal
        self._climb = LossRise() if climbs else None
        self._reported = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the logged values."""
        divergence = self._divergence(args, state.global_step, logs or {})
        if divergence is None or self._reported:
            return
        since, message = divergence
        self._reported = True
        ignored = self._policy == "ignore"
        data = {"step": state.global_step, "since": since, "policy": self._policy}
        self._journal.event("training.diverged", message, "warning" if ignored else "error", data)
        if ignored:
            return
        if self._policy == "rollback" and state.is_world_process_zero:
            # A checkpoint that is still being written can only be superseded once it is complete.
            self._session.settle()
            for moved in supersede_beyond(self._session.checkpoints_dir, since - 1):
                text = f"{moved.name} was saved after the divergence began and is not used for resuming."
                self._journal.event("checkpoint.superseded", text, "warning")
        raise DivergedError(message, hint="Lower `training.learning_rate`, or check the rows of that step.")

    def _divergence(self, args: TrainingArguments, step: int, logs: dict[str, Any]) -> tuple[int, str] | None:
        loss, norm = logs.get("loss"), logs.get("grad_norm")
        if isinstance(loss, float) and not math.isfinite(loss):
            return step, f"The loss at step {step} is {loss}."
        # With fp16 an infinite gradient is normal: the loss scaler skips the step and lowers its scale.
        if isinstance(norm, float) and not math.isfinite(norm) and not args.fp16:
            return step, f"The gradient at step {step} is {norm}."
        if self._climb is None or not isinstance(loss, float):
            return None
        since = self._climb.add(step, loss)
        if since is None:
            return None
        return since, f"The loss has risen since step {since} and stays high: {loss:.3g} at step {step}."
