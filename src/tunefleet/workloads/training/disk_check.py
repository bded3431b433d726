"""Estimates what a training run will write to disk from its model and arguments, before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable

from transformers import Trainer, TrainingArguments

from tunefleet.runtime.disk_check import DiskTooSmallError, Forecast, require_space
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.checkpoints.manifest import list_complete


def require_disk(folder: JobFolder, trainer: Trainer, *, adapter: bool, make_room: Callable[[], bool]) -> None:
    """Raise `DiskTooSmallError` if the disk has no space for the checkpoints and the final model.

    Caches for later launches are deleted with `make_room` before a run is refused.
    """
    # Earlier launches of this job wrote these already; they count towards the estimate, not against it.
    present = sum(checkpoint.size_bytes for checkpoint in list_complete(folder.checkpoints_dir))
    needed = forecast(trainer, adapter=adapter)
    try:
        require_space(folder.root, needed, present_bytes=present)
    except DiskTooSmallError:
        if not make_room():
            raise
        require_space(folder.root, needed, present_bytes=present)


def forecast(trainer: Trainer, *, adapter: bool) -> Forecast:
    """Return what a training run will write."""
    parameters = list(trainer.model.parameters())
    saved = [parameter for parameter in parameters if parameter.requires_grad or not adapter]
    return Forecast(
        weights_bytes=sum(parameter.numel() * parameter.element_size() for parameter in saved),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        checkpoints=trainer.args.save_total_limit,
        saves=_saves(trainer.args, len(trainer.train_dataset)),
    )


def _saves(args: TrainingArguments, rows: int) -> int:
    """Return how many checkpoints a run writes, including the one at its end."""
    per_epoch = math.ceil(rows / (args.train_batch_size * args.gradient_accumulation_steps * args.world_size))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    match args.save_strategy:
        case "no":
            return 0
        case "epoch":
            return math.ceil(steps / max(per_epoch, 1))
        case "best":
            # At most one per evaluation; an interval below one is a ratio of the run.
            return _times(steps, args.eval_steps or steps)
        case _:
            return _times(steps, args.save_steps)


def _times(steps: int, interval: float) -> int:
    return math.ceil(1 / interval) if interval < 1 else math.ceil(steps / interval)
