"""What the GPUs of a worker have used, from the power that they draw at each heartbeat."""

from __future__ import annotations

from collections.abc import Iterable

from tunefleet.schemas.worker_link import GpuLoad


class EnergyMeter:
    """Adds up power over the time between two readings of a GPU, as the mean of both.

    A GPU that tells no power for a while adds nothing for that while: what is not known is not made up.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._joules: float | None = None

    def read(self, gpus: Iterable[GpuLoad], *, now: float) -> float | None:
        """Take a reading.

        Args:
            gpus: How each stands.
            now: Seconds of a steady clock.

        Returns:
            Joules since the first reading; None as long as no GPU has told its power.
        """
        drawn = {gpu.uuid: gpu.power_w for gpu in gpus if gpu.power_w is not None}
        if drawn and self._joules is None:
            self._joules = 0.0
        for uuid in drawn.keys() & self._last.keys():
            before_w, before = self._last[uuid]
            self._joules = (self._joules or 0.0) + (before_w + drawn[uuid]) / 2 * (now - before)
        self._last = {uuid: (power_w, now) for uuid, power_w in drawn.items()}
        return self._joules
