"""Evaluation: what a model, a tuned model or an adapter is worth, in numbers with intervals.

    recipe      the run from beginning to end       subject     which model, and its weights
    rows        the rows of an evaluation           kept        what is done already, item by item
    loss        loss and perplexity                 exact       answers that are right
    extraction  what of an answer is compared       harness     tasks of lm-eval
    statistics  intervals and paired differences    scores      what those have measured
    foreign     tasks that are not lm-eval's own    comparing   several evaluations beside each other
    result      what a run reports

`job.json` names it `tunefleet.programs.evaluate:main`. `statistics` needs no training library: `tunefleet compare` has
it, too; so the program is imported only when it runs.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the evaluation of a job folder; see `recipe.run`."""
    from tunefleet.programs.evaluate.recipe import run

    run(folder)
