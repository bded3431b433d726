"""A command of the user's as a job: attached as `tunefleet run` attaches it, its outputs collected.

    ran = run_attached(session, ["axolotl", "train", "config.yaml"], env=…, cwd=…)     # another program's own command
    if ran.ended:
        return                                                                         # paused or aborted: no result

`main` is the program of the task kind `command`.
"""

from tunefleet.workloads.command.run import main
from tunefleet.workloads.command.trainer_launch import Ran, environment_of, run_attached

__all__ = ["Ran", "environment_of", "main", "run_attached"]
