"""Evaluation: what a model, a tuned model or an adapter is worth, in numbers with intervals.

    run               the run from beginning to end
    model_under_test  which model, and its weights
    items             the rows of an evaluation
    item_log          what is done already, item by item
    loss              loss and perplexity
    accuracy          answers that are right
    extraction        what of an answer is compared
    lm_eval           tasks of lm-eval
    statistics        intervals and paired differences
    scores            what those have measured
    custom_tasks      tasks that are not lm-eval's own
    comparing         several evaluations beside each other
    summary           what a run reports

`job.json` names it `tunefleet.workloads.evaluation:main`. It is imported only when it runs.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the evaluation of a job folder; see `run.run`."""
    from tunefleet.workloads.evaluation.run import run

    run(folder)
