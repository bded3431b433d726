"""Checks before a training starts that the disk has space for its checkpoints and its final model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tunefleet.errors import MachineError

_OPTIMIZER_BYTES = 8
# For journal, log and other small files.
_RESERVE_BYTES = 64 << 20
_GIB = 1 << 30


@dataclass(frozen=True)
class Forecast:
    """Disk usage of a training.

    Args:
        checkpoints: How many checkpoints are kept; None keeps all `saves`.
        optimizer_bytes: State per trainable parameter; Adam keeps two numbers in float32.
    """

    weights_bytes: int
    trainable_parameters: int
    checkpoints: int | None
    saves: int
    optimizer_bytes: int = _OPTIMIZER_BYTES

    @property
    def checkpoint_bytes(self) -> int:
        """Size of one checkpoint."""
        return self.weights_bytes + self.trainable_parameters * self.optimizer_bytes

    @property
    def peak_bytes(self) -> int:
        """Peak disk usage, including the final model."""
        # One more than are kept: an old checkpoint is deleted only after a newer one is complete.
        kept = self.saves if self.checkpoints is None else min(self.checkpoints + 1, self.saves)
        return kept * self.checkpoint_bytes + self.weights_bytes


class DiskTooSmallError(MachineError):
    """A training would fill the disk."""


def require_space(folder: Path, forecast: Forecast, *, present_bytes: int = 0) -> None:
    """Reject a training that would fill the disk.

    Args:
        present_bytes: Size of existing files that the training replaces or reuses.

    Raises:
        DiskTooSmallError: If there is not enough free space; the message has the needed and the free space.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(existing).free, max(forecast.peak_bytes - present_bytes, 0) + _RESERVE_BYTES
    if needed > free:
        kept = "all" if forecast.checkpoints is None else str(forecast.checkpoints)
        raise DiskTooSmallError(
            f"The training run needs {needed / _GIB:.2f} GiB in {folder} "
            f"({forecast.checkpoint_bytes / _GIB:.2f} GiB per "
            f"checkpoint, {kept} kept), but only {free / _GIB:.2f} GiB are free.",
            hint="Free disk space, lower training.save_total_limit, or save less often.",
        )
