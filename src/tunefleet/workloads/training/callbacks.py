"""What watches and steers every training: control, journal, checkpoints, divergence, trackers."""

from __future__ import annotations

from typing import Final

from transformers import TrainerCallback

from tunefleet import trainer_control
from tunefleet.trainer_control.checkpoints.retention import kept_by_others
from tunefleet.workloads.training import participation
from tunefleet.workloads.training.checkpoint_compression import Compress
from tunefleet.workloads.training.divergence import WatchDivergence
from tunefleet.workloads.training.launch import Launch, SpecT
from tunefleet.workloads.training.trackers import tensorboard

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
