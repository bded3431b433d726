"""Which boot of this machine it is: what an earlier one left running is gone, and its clocks say nothing."""

from __future__ import annotations

from typing import Final

import psutil

from tunefleet.trainer_control import process_identity

_SAME_BOOT_S: Final = 120.0


def boot_name() -> str:
    """Return a name of this boot of the machine: its id, or where there is none, the moment of the boot."""
    return process_identity.boot_id() or f"booted {round(psutil.boot_time() / _SAME_BOOT_S)}"
