"""`ppo` tasks: run in the environment `ppo`, with the last TRL version that has a PPO trainer."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from tunefleet.errors import MachineError


def main(folder: Path) -> None:
    """Run the PPO task of a job folder.

    Raises:
        MachineError: If the installed TRL has no PPO trainer.
        InputError: If data, models or options cannot be used.
    """
    # The warning says that the API may change; the environment pins the version.
    warnings.filterwarnings("ignore", message="You are importing from 'trl.experimental'")
    try:
        import trl.experimental.ppo  # noqa: F401
    except ImportError as error:
        raise MachineError(
            f"The TRL of {sys.executable} has no PPO trainer.", hint="tunefleet env create ppo --again"
        ) from error
    from tunefleet.workloads.ppo.run import run

    run(folder)
