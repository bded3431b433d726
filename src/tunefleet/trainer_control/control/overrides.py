"""Values that `set` changes in a running training run, and how they survive a resume.

The learning rate is changed through the scheduler's base rates, since a rate in the optimizer's groups alone would be
overwritten at the next step. Every change is stored in `overrides.json`; a resumed training run applies it again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..files import read_json, write_json

logger = logging.getLogger("tunefleet.control")

FILE = "overrides.json"
INTERVALS = ("logging_steps", "save_steps", "eval_steps")
SETTABLE = ("learning_rate", *INTERVALS, "max_steps")
_MOST_STEPS = 2**53
KEPT = ("batch_size", "gradient_accumulation_steps", "rollbacks", "after")
"""Written by the job's supervisor for a relaunch, and applied by the job's program."""


class RefusedChangeError(Exception):
    """This training run does not support the change; the text holds the reason."""


def check_changes(data: Mapping[str, Any]) -> None:
    """Reject changes that no training run supports.

    Raises:
        ValueError: If a name is unknown, a value is out of range, or there is nothing to change.
    """
    given = {name: value for name, value in data.items() if value is not None}
    if unknown := sorted(given.keys() - set(SETTABLE)):
        raise ValueError(f"{', '.join(unknown)} cannot be set; supported: {', '.join(SETTABLE)}.")
    if not given:
        raise ValueError(f"Nothing to set; supported: {', '.join(SETTABLE)}.")
    for name, value in given.items():
        kinds = (int, float) if name == "learning_rate" else (int,)
        most = sys.float_info.max if name == "learning_rate" else _MOST_STEPS
        # bool is an int in Python.
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= most:
            kind = "a number" if name == "learning_rate" else f"a whole number up to {_MOST_STEPS} and"
            raise ValueError(f"{name} must be {kind} greater than 0, not {str(value)[:40]}.")


class Overrides:
    """The changes of one training run.

    Args:
        folder: The folder of `overrides.json`; None until `set_folder` sets it.
        always: Whether the folder belongs to one job and counts from the start. Otherwise it counts only for a run that
            resumes: the folder of an unmanaged Trainer may be used by a new training run that is unrelated to the last
                one.
    """

    def __init__(self, folder: Path | None = None, *, always: bool = True) -> None:
        self._file = folder / FILE if folder else None
        self._always = always

    def set_folder(self, folder: str | Path | None) -> None:
        """Set the folder, if it is not set yet."""
        if self._file is None and folder is not None:
            self._file = Path(folder) / FILE

    def at_init(self, args: Any) -> None:
        """Apply `max_steps`, from which the epochs and the schedule are computed."""
        changes = self._read()
        if "max_steps" in changes and (self._always or self._may_resume()):
            args.max_steps = changes["max_steps"]

    def at_begin(self, args: Any, state: Any, lr_scheduler: Any) -> None:
        """Apply the other changes, when a training run begins and its checkpoint is loaded."""
        changes = self._read()
        if not changes:
            return
        if not self._always and state.global_step == 0:
            self._drop(changes, args)
            return
        changes.pop("max_steps", None)
        for name, value in changes.items():
            try:
                self._apply({name: value}, args, state, lr_scheduler)
            except RefusedChangeError as refusal:
                logger.warning("%s, set in an earlier launch, does not apply to this one: %s", name, refusal)

    def change(self, data: Mapping[str, Any], args: Any, state: Any, control: Any, lr_scheduler: Any) -> None:
        """Change a running training run, all or nothing.

        Raises:
            RefusedChangeError: If the run does not support the change; nothing is changed then.
        """
        changes = {name: value for name, value in data.items() if value is not None}
        self._apply(changes, args, state, lr_scheduler)
        if "max_steps" in changes:
            _end_at(changes["max_steps"], args, state, control)

    def keep(self, data: Mapping[str, Any]) -> None:
        """Record changes for the next resume.

        Raises:
            OSError: If they cannot be written.
        """
        if self._file is None:
            return
        changes = {name: value for name, value in data.items() if value is not None}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in (read_json(self._file) or {}).items() if name in KEPT}
        write_json(self._file, {**kept, **self._read(), **changes}, sync=True)

    def _apply(self, changes: Mapping[str, Any], args: Any, state: Any, lr_scheduler: Any) -> None:
        intervals = {name: value for name, value in changes.items() if name in INTERVALS}
        _check_intervals(intervals, args, state)
        if "learning_rate" in changes:
            _scale_rates(lr_scheduler, float(changes["learning_rate"]))
        for name, value in intervals.items():
            setattr(args, name, value)
            # The Trainer's loop reads the state, where fractions are already converted to steps.
            setattr(state, name, value)

    def _read(self) -> dict[str, Any]:
        stored = (read_json(self._file) if self._file else None) or {}
        changes = {name: value for name, value in stored.items() if name not in KEPT}
        try:
            if changes:
                check_changes(changes)
        except ValueError as error:
            logger.warning("%s is not applied: %s", self._file, error)
            return {}
        return changes

    def _may_resume(self) -> bool:
        return self._file is not None and any(self._file.parent.glob("checkpoint-*"))

    def _drop(self, changes: Mapping[str, Any], args: Any) -> None:
        if self._file is None:
            return
        logger.warning("A new training run begins: values set in an earlier one are dropped: %s", dict(changes))
        if changes.get("max_steps") == args.max_steps:
            logger.warning("max_steps %s still applies to this run: it was planned with it", args.max_steps)
        self._file.unlink(missing_ok=True)


def _check_intervals(intervals: Mapping[str, int], args: Any, state: Any) -> None:
    for name in intervals:
        strategy_name = name.replace("_steps", "_strategy")
        strategy = _value(getattr(args, strategy_name))
        # The Trainer reads the interval only with this strategy.
        if strategy != "steps":
            raise RefusedChangeError(f"{name} has no effect: the training run uses {strategy_name}={strategy!r}.")
    if not (args.load_best_model_at_end and intervals.keys() & {"save_steps", "eval_steps"}):
        return
    save = int(intervals.get("save_steps") or state.save_steps or 0)
    evaluate = int(intervals.get("eval_steps") or state.eval_steps or 0)
    if _value(args.save_strategy) == "steps" and evaluate and save % evaluate:
        raise RefusedChangeError(
            f"load_best_model_at_end needs an evaluation at every save: {save} is not a multiple of {evaluate}."
        )


def _value(strategy: Any) -> str:
    return str(getattr(strategy, "value", strategy))


def _end_at(max_steps: int, args: Any, state: Any, control: Any) -> None:
    if max_steps > state.max_steps:
        return  # epochs and schedule are fixed: it applies from the next resume
    state.max_steps = max_steps
    if state.global_step >= max_steps:
        control.should_training_stop = True
        control.should_save = control.should_save or _value(args.save_strategy) == "steps"


def _scale_rates(lr_scheduler: Any, peak: float) -> None:
    """Set a new peak: all rates are scaled, the schedule's shape and position stay."""
    schedulers = list(_schedulers(lr_scheduler))
    if not schedulers:
        raise RefusedChangeError("The training run has no learning rate scheduler.")
    for scheduler in schedulers:
        if type(scheduler).__module__.partition(".")[0] == "deepspeed" or type(scheduler).__name__ == "DummyScheduler":
            raise RefusedChangeError(
                f"DeepSpeed's own scheduler ({type(scheduler).__name__}) sets the learning rate, which cannot be"
                " changed during training. Remove `scheduler` from the DeepSpeed configuration."
            )
    groups = schedulers[0].optimizer.param_groups
    bases = getattr(schedulers[-1], "base_lrs", None) or [group["lr"] for group in groups]
    before = max(float(rate) for rate in bases)
    if before <= 0:
        raise RefusedChangeError("The learning rate is 0 throughout and cannot be scaled.")
    # Avoids a rounding error in all rates.
    if before == peak:
        return
    for scheduler in schedulers:
        for name in ("base_lrs", "_last_lr"):
            if rates := getattr(scheduler, name, None):
                setattr(scheduler, name, [_scaled(rate, before, peak) for rate in rates])
    for group in groups:
        _scale_group(group, before, peak)


def _scale_group(group: dict[str, Any], before: float, peak: float) -> None:
    for name in ("lr", "initial_lr"):
        # A capturable optimizer keeps its rate in a tensor that CUDA graphs hold, so it is changed in place.
        if hasattr(group.get(name), "fill_"):
            group[name].fill_(_scaled(group[name], before, peak))
        elif name in group:
            group[name] = _scaled(group[name], before, peak)


def _scaled(rate: Any, before: float, peak: float) -> float:
    # In this order the highest rate comes out exactly as it was asked for.
    return peak * (float(rate) / before)


def _schedulers(scheduler: Any) -> Iterator[Any]:
    """Yield the innermost schedulers: Accelerate wraps one, SequentialLR and ChainedScheduler hold several."""
    inner = getattr(scheduler, "scheduler", None)
    if inner is not None:
        yield from _schedulers(inner)
    elif several := getattr(scheduler, "_schedulers", None):
        for one in several:
            yield from _schedulers(one)
    elif scheduler is not None:
        yield scheduler
