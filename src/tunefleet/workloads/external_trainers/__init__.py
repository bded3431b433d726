"""Trainers that are not ours: a training of Tunefleet's is translated for another's code, and runs attached.

    launch_plan                     what a trainer is asked and answers: the seam that plugins see
    registry                        which trainers there are
    rows                            what is trained on, as tokens
    axolotl, llamafactory, unsloth  the translations
    run                             the run from beginning to end

A trainer is a function from `Request` to `Plan`; a plugin names one in the entry point group `tunefleet.trainers`.
`job.json` names the program `tunefleet.workloads.external_trainers:main`.
"""

from __future__ import annotations

from pathlib import Path

from tunefleet.workloads.external_trainers.launch_plan import Plan, Request

__all__ = ["Plan", "Request", "main"]


def main(folder: Path) -> None:
    """Run the training of a job folder; see `run.run`."""
    from tunefleet.workloads.external_trainers.run import run

    run(folder)
