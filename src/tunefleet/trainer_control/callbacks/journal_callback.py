"""Writes a training run's logs and progress to the journal and the status file.

Nothing here waits for a device: it uses what the Trainer has logged, and once a second reads the clock and torch's
allocator. The resident memory is read by the journal's thread.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..journal.writer import plain_values
from ..process_identity import resident_bytes
from ..session import JobSession

PROGRESS_S = 1.0
_SMOOTHING = 0.1


class JournalCallback(TrainerCallback):
    """Reports the training runs of one process; the second run gets a series of its own.

    Args:
        session: The job's session.
    """

    def __init__(self, session: JobSession) -> None:
        self._journal = session.journal
        self._status = session.status
        self._trainings = session.trainings
        # A rank that does not report skips building records that nothing would read.
        self._reports = session.leads
        self._rest = "loading"
        self._series = "train"
        self._window_from = 1
        self._phase = "training"
        self._step_ended = 0.0
        self._step_time_s: float | None = None
        self._next_progress = 0.0
        self._tokens = _Rate()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a series at the step that the training run starts or resumes from."""
        number = next(self._trainings)
        self._series = "train" if number == 1 else f"train-{number}"
        self._rest = "training"
        self._window_from = state.global_step + 1
        self._step_time_s = None
        self._tokens = _Rate()
        self._step_ended = time.perf_counter()
        data = {"from_step": state.global_step, "max_steps": state.max_steps, "series": self._series}
        self._journal.event(
            "training.started", f"Training from step {state.global_step} to {state.max_steps}.", data=data
        )
        self._status.write(state="running", phase="training", step=state.global_step, max_steps=state.max_steps)
        self._report("training", state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure the step; force a log at a save, a stop or the end, so that the windows tile the run."""
        now = time.perf_counter()
        taken, self._step_ended = now - self._step_ended, now
        before = self._step_time_s
        self._step_time_s = taken if before is None else before + _SMOOTHING * (taken - before)
        self._force_log(args, control)
        if control.should_training_stop and state.global_step < state.max_steps:
            self._rest = "stopping"
        if control.should_evaluate:
            self._report("evaluating", state)
        elif control.should_save:
            self._report("saving", state)
        elif before is None or now >= self._next_progress:
            self._report("training", state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log before the save of an epoch, and before the end."""
        self._force_log(args, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record what the Trainer logged."""
        if not self._reports:
            return
        step, values = state.global_step, plain_values(logs or {})
        epoch = values.pop("epoch", None)
        number = epoch if isinstance(epoch, float) else None
        window = None
        # Only training losses are averages over a window of steps.
        if "loss" in values:
            window = (self._window_from, step)
            self._window_from = step + 1
        tokens = state.num_input_tokens_seen or values.get("num_tokens")
        if tokens and not isinstance(tokens, str):
            self._tokens.add(tokens)
        self._journal.metric(step, values, series=self._series, epoch=number, window=window)
        self._status.log(step, values, epoch=number)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report a running evaluation."""
        if self._phase != "evaluating" or time.perf_counter() >= self._next_progress:
            self._report("evaluating", state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the end of the evaluation; a save may follow."""
        if control.should_save:
            self._report("saving", state)
        else:
            self._resume(state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the end of the save."""
        self._resume(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report that the program's own work follows."""
        self._rest = "finishing"
        self._report(self._rest, state)

    def _resume(self, state: TrainerState) -> None:
        self._step_ended = time.perf_counter()
        self._report(self._rest, state)

    def _force_log(self, args: TrainingArguments, control: TrainerControl) -> None:
        may_save = control.should_evaluate and args.save_strategy == "best"
        if control.should_save or control.should_training_stop or may_save:
            control.should_log = True

    def _report(self, phase: str, state: TrainerState) -> None:
        # At most one progress record per second: steps may take milliseconds.
        self._next_progress = time.perf_counter() + PROGRESS_S
        self._phase = phase
        if not self._reports:
            return
        self._tokens.add(state.num_input_tokens_seen)
        step_time_s = self._step_time_s
        eta_s = self._eta_s(state)
        self._journal.progress(
            phase,
            step=state.global_step,
            max_steps=state.max_steps,
            step_time_s=step_time_s,
            tokens_per_s=self._tokens.per_s,
            eta_s=eta_s,
            gpu_bytes=_gpu_bytes("memory_reserved"),
            gpu_allocated_bytes=_gpu_bytes("memory_allocated"),
            probe=_resident,
        )
        self._status.update(phase=phase, step=state.global_step, max_steps=state.max_steps, eta_s=eta_s)

    def _eta_s(self, state: TrainerState) -> float | None:
        left, step_time_s = state.max_steps - state.global_step, self._step_time_s
        if step_time_s is None:
            return None
        # Milliseconds; `round` converts by way of decimal digits, and takes several times as long.
        return int(left * step_time_s * 1e3) / 1e3 if left > 0 else 0.0


class _Rate:
    """Smoothed growth per second of a counter that is read irregularly."""

    def __init__(self) -> None:
        self.per_s: float | None = None
        self._count = 0
        self._at = 0.0

    def add(self, count: float) -> None:
        """Add a reading; one that has not grown is ignored."""
        now = time.perf_counter()
        if count <= self._count:
            return
        if self._count:
            rate = (count - self._count) / max(now - self._at, 1e-9)
            self.per_s = rate if self.per_s is None else self.per_s + 0.3 * (rate - self.per_s)
        self._count, self._at = int(count), now


def _resident() -> dict[str, int | None]:
    return {"rss_bytes": resident_bytes()}


def _gpu_bytes(figure: str) -> int | None:
    # Read only from a torch that has already initialized the device; the call neither initializes nor waits. In the
    # training thread, between steps: another thread has its own current device, and may wait for an allocation.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(getattr(torch.cuda, figure)())
