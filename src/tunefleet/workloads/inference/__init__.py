"""Inference: items through a language model, one run for several equal tasks.

    run            the run from beginning to end
    merged_tasks   the tasks of a run
    items          spec.data → items
    questions      items → distinct questions
    weights        spec → what an engine loads
    engines        which engine, and the engine
    runner         questions → answers, as they come
    answer_log     answers on disk
    answer_schema  answers that are JSON
    export         rows for a training
    result         what a task is told

`job.json` names it `tunefleet.workloads.inference:main`. The engine may live in a process of its own, which has the
libraries; here nothing of torch is imported.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the inference of a job folder; see `run.run`."""
    from tunefleet.workloads.inference.run import run

    run(folder)


__all__ = ["main"]
