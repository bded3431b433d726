"""Evaluation of a base model, a tuned model or an adapter: metrics with confidence intervals.

    run               the program
    model_under_test  the evaluated model and its weights
    items             the rows of an evaluation
    item_log          finished items
    loss              loss and perplexity
    accuracy          share of right answers
    extraction        the compared part of an answer
    lm_eval           tasks of lm-eval
    statistics        intervals and paired differences
    scores            metrics of lm-eval results
    custom_tasks      custom lm-eval tasks
    comparing         several evaluations next to each other
    summary           the result

`job.json` names it `tunefleet.workloads.evaluation:main`. It is imported only when it runs.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the evaluation of a job folder; see `run.run`."""
    from tunefleet.workloads.evaluation.run import run

    run(folder)
