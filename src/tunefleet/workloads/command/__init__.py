"""A user's command as a job: hooked like `tunefleet run`, its outputs collected.

    ran = run_attached(session, ["axolotl", "train", "config.yaml"], env=…, cwd=…)     # a third-party command
    if ran.ended:
        return                                                                         # paused or aborted: no result

`main` is the program of the task type `command`.
"""

from tunefleet.workloads.command.run import main
from tunefleet.workloads.command.trainer_launch import Ran, environment_of, run_attached

__all__ = ["Ran", "environment_of", "main", "run_attached"]
