"""Whether the disk can take what a training will write, asked before it starts.

The peak is one checkpoint more than are kept, since an old one is deleted only after a newer one is whole, and the
final model beside them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tunefleet.errors import MachineError

_OPTIMIZER_BYTES = 8
_RESERVE_BYTES = 64 << 20
_GIB = 1 << 30


@dataclass(frozen=True)
class Forecast:
    """What a training will write.

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
        """The most that lies on the disk at one moment, the final model included."""
        kept = self.saves if self.checkpoints is None else min(self.checkpoints + 1, self.saves)
        return kept * self.checkpoint_bytes + self.weights_bytes


class DiskTooSmallError(MachineError):
    """A training would fill the disk."""


def require_space(folder: Path, forecast: Forecast, *, present_bytes: int = 0) -> None:
    """Refuse a training that would fill the disk.

    Raises:
        DiskTooSmallError: If the free space does not suffice; the message says how much is needed and free.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(existing).free, max(forecast.peak_bytes - present_bytes, 0) + _RESERVE_BYTES
    if needed > free:
        kept = "all" if forecast.checkpoints is None else str(forecast.checkpoints)
        raise DiskTooSmallError(
            f"The training needs {needed / _GIB:.2f} GiB under {folder} ({forecast.checkpoint_bytes / _GIB:.2f} GiB a "
            f"checkpoint, {kept} kept), {free / _GIB:.2f} GiB are free.",
            hint="Free some space, lower training.save_total_limit, or save less often.",
        )
