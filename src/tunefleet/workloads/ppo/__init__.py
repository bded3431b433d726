"""The program of `ppo` tasks: runs in the environment `ppo`, on the trainer of the last TRL that has one."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from tunefleet.errors import MachineError


def main(folder: Path) -> None:
    """Train the job of a folder.

    Raises:
        MachineError: If the TRL here has no PPO.
        InputError: If data, models or options cannot be used.
    """
    # That it may change is known: its version is pinned.
    warnings.filterwarnings("ignore", message="You are importing from 'trl.experimental'")
    try:
        import trl.experimental.ppo  # noqa: F401
    except ImportError as error:
        raise MachineError(
            f"The TRL of {sys.executable} has no PPO trainer.", hint="tunefleet env create ppo --again"
        ) from error
    from tunefleet.workloads.ppo.run import run

    run(folder)
