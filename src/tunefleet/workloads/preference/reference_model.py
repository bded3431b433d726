"""The model that a training is held to: an untrained copy, or the trained one with its adapter turned off."""

from __future__ import annotations

from typing import Any

import datasets

from tunefleet.trainer_control.distributed import world
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.preference.method import Parts, SpecT
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly

FOLDER = "reference"
"""In the job folder: rows with what the reference says of them."""


def reference_of(launch: Launch[SpecT], parts: Parts) -> Any:
    """Load the reference; None where an adapter is trained, which TRL turns off for it.

    Raises:
        ModelError: If it cannot be loaded.
    """
    spread = launch.parallelism == "device_map"
    return assembly.load_reference(launch.spec, parts.base, parts.around.kernels, spread=spread)


def where_others_find_it(launch: Launch[SpecT], common: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
    """Put the rows on the disk if the reference judges them beforehand: each rank reads what one has written.

    Args:
        launch: What is trained.
        common: What a trainer takes.
        wanted: Whether the reference judges them beforehand.
    """
    if not wanted:
        return common
    folder = launch.folder.root / FOLDER / launch.job.launch
    named = ("train_dataset", "eval_dataset")
    with ranks.leader_first(launch.folder, launch.job.launch, FOLDER):
        if world.leads_folder():
            for name in named:
                if common[name] is not None:
                    common[name].save_to_disk(str(folder / name))
    there = {name: datasets.load_from_disk(str(folder / name)) for name in named if common[name] is not None}
    return {**common, **there}
