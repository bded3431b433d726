"""Third-party trainers: a training task is translated for another framework, which runs attached.

    launch_plan                     the interface for plugins
    registry                        available trainers
    rows                            tokenized rows on disk
    axolotl, llamafactory, unsloth  the translations
    settings                        arguments common to all of them
    run                             the run from start to end

A trainer is a function from `Request` to `Plan`; a plugin names one in the entry point group `tunefleet.trainers`.
`job.json` names the program `tunefleet.workloads.external_trainers:main`.
"""

from __future__ import annotations

from pathlib import Path

from tunefleet.workloads.external_trainers.trainers import Plan, Request

__all__ = ["Plan", "Request", "main"]


def main(folder: Path) -> None:
    """Run the training task of a job folder; see `run.run`."""
    from tunefleet.workloads.external_trainers.run import run

    run(folder)
