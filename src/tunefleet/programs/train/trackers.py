"""Trackers that need more than their name."""

from __future__ import annotations

from pathlib import Path

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback


def tensorboard(folder: Path) -> TrainerCallback:
    """Return a callback that writes TensorBoard's files into the job folder, where the other results are."""
    from torch.utils.tensorboard import SummaryWriter  # only there if tensorboard is installed

    return TensorBoardCallback(SummaryWriter(log_dir=str(folder)))
