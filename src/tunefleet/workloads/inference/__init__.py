"""Inference: items through a language model, one run for several mergeable tasks.

    run            the program
    merged_tasks   the tasks of a run
    items          spec.data → items
    questions      items → distinct questions
    weights        spec → what an engine loads
    engines        choice and start of the engine
    runner         questions → answers, as a stream
    answer_log     answers on disk
    answer_schema  JSON answers
    export         rows for a training run
    result         the result of a task

`job.json` names it `tunefleet.workloads.inference:main`. The engine may run in its own process, which imports the
libraries; nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the inference of a job folder; see `run.run`."""
    from tunefleet.workloads.inference.run import run

    run(folder)


__all__ = ["main"]
