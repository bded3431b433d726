"""Trackers that need more than their name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import TrainerCallback


def tensorboard(folder: Path) -> TrainerCallback:
    """Return a callback that writes TensorBoard's files into the job folder, where the other results are."""
    from torch.utils.tensorboard import SummaryWriter  # only there if tensorboard is installed
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(SummaryWriter(log_dir=str(folder)))


def name_project(project: str) -> None:
    """Name the project of the trackers that ask the environment for it, and not the training arguments."""
    os.environ["WANDB_PROJECT"] = os.environ["MLFLOW_EXPERIMENT_NAME"] = project
