"""What watches and steers every training: control, journal, checkpoints, divergence, trackers."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, Final, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunefleet import trainer_control
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.checkpoints.manifest import supersede_beyond
from tunefleet.trainer_control.checkpoints.retention import kept_by_others
from tunefleet.workloads.faults import DivergedError
from tunefleet.workloads.training import participation
from tunefleet.workloads.training.arguments import tensorboard
from tunefleet.workloads.training.checkpoint_compression import Compress
from tunefleet.workloads.training.launch import Launch, SpecT

_ON_REWARDS: Final = ("grpo", "ppo", "rloo")


def common_callbacks(launch: Launch[SpecT]) -> list[TrainerCallback]:
    """Return the callbacks of any training; none of them needs to know the trainer."""
    spec, folder = launch.spec, launch.folder.root
    steering = trainer_control.callbacks_for_job(folder)
    # First: what belongs into a checkpoint must be there before the others hash it.
    callbacks: list[TrainerCallback] = [*participation.callbacks(launch, steering), *steering]
    if spec.checkpoint.compress == "zstd":
        callbacks.append(Compress(lambda name: name in kept_by_others(folder, ("uploading",))))
    callbacks.append(WatchDivergence(spec.on_nan, launch.session, climbs=spec.task_type not in _ON_REWARDS))
    if "tensorboard" in spec.training.trackers and launch.session.leads:
        callbacks.append(tensorboard(folder / "tensorboard"))
    return callbacks


Policy = Literal["stop", "rollback", "ignore"]

_HISTORY = 100
_ENOUGH = 20
_TIMES = 3.0
_NATS = 1.0
_IN_A_ROW = 10


class Climb:
    """Watches a series of losses for one that climbs far above its median and stays there."""

    def __init__(self) -> None:
        self._good: deque[float] = deque(maxlen=_HISTORY)
        self._since: int | None = None
        self._count = 0

    def add(self, step: int, loss: float) -> int | None:
        """Take a loss; return the step at which the trouble began once it has lasted."""
        usual = statistics.median(self._good) if len(self._good) >= _ENOUGH else None
        if usual is None or loss <= max(_TIMES * usual, usual + _NATS):
            self._good.append(loss)
            self._since, self._count = None, 0
            return None
        self._since = step if self._since is None else self._since
        self._count += 1
        return self._since if self._count >= _IN_A_ROW else None


class WatchDivergence(TrainerCallback):
    """Ends a broken training, or says once that it is broken.

    A save forces a log before it, so no checkpoint is ever written of weights whose loss was no number.

    Args:
        climbs: Whether a loss that climbs is trouble, too: that of a training on rewards says nothing of how good the
            answers are, and may.
    """

    def __init__(self, policy: Policy, session: JobSession, *, climbs: bool = True) -> None:
        self._policy = policy
        self._session = session
        self._journal = session.journal
        self._climb = Climb() if climbs else None
        self._said = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Look at what was logged."""
        trouble = self._trouble(args, state.global_step, logs or {})
        if trouble is None or self._said:
            return
        since, what = trouble
        self._said = True
        ignored = self._policy == "ignore"
        data = {"step": state.global_step, "since": since, "policy": self._policy}
        self._journal.event("training.diverged", what, "warning" if ignored else "error", data)
        if ignored:
            return
        if self._policy == "rollback" and state.is_world_process_zero:
            self._session.settle()  # one that is being finished must be whole, or it could not be set aside
            for moved in supersede_beyond(self._session.checkpoints_dir, since - 1):
                text = f"{moved.name} was saved after the trouble began and is not resumed from."
                self._journal.event("checkpoint.superseded", text, "warning")
        raise DivergedError(what, hint="Lower `training.learning_rate`, or look at the rows of that step.")

    def _trouble(self, args: TrainingArguments, step: int, logs: dict[str, Any]) -> tuple[int, str] | None:
        loss, norm = logs.get("loss"), logs.get("grad_norm")
        if isinstance(loss, float) and not math.isfinite(loss):
            return step, f"The loss at step {step} is {loss}."
        # With fp16 an infinite gradient is everyday business: the step is skipped and the scale is lowered.
        if isinstance(norm, float) and not math.isfinite(norm) and not args.fp16:
            return step, f"The gradient at step {step} is {norm}."
        if self._climb is None or not isinstance(loss, float):
            return None
        since = self._climb.add(step, loss)
        if since is None:
            return None
        return since, f"The loss has climbed since step {since} and stays high: {loss:.3g} at step {step}."
