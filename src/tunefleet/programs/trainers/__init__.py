"""Trainers that are not ours: a training of Tunefleet's is translated for another's code, and runs attached.

    plan          what a trainer is asked and answers: the seam that plugins see
    known         which trainers there are         rows     what is trained on, as tokens
    axolotl, llamafactory, unsloth                 the translations
    recipe        the run from beginning to end

A trainer is a function from `Request` to `Plan`; a plugin names one in the entry point group `tunefleet.trainers`.
`job.json` names the program `tunefleet.programs.trainers:main`.
"""

from __future__ import annotations

from pathlib import Path

from tunefleet.programs.trainers.plan import Plan, Request

__all__ = ["Plan", "Request", "main"]


def main(folder: Path) -> None:
    """Run the training of a job folder; see `recipe.run`."""
    from tunefleet.programs.trainers.recipe import run

    run(folder)
