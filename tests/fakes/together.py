"""A worker whose `inference` is a test executor: one run computes several tasks. `python -m tests.fakes.together`.

A prompt `wait:PATH` is answered when the file is there; the prompt `forget` makes the run say nothing of its task.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, ClassVar

from tunefleet import trainer_control
from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.executors.registry import Registry
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.settings import WorkerSettings, load
from tunefleet.worker.__main__ import log_to_stderr
from tunefleet.worker.main import run
from tunefleet.workloads.inference.deduplication import batch


class Together(JobExecutor):
    """Answers prompts in capitals, for several tasks at a time."""

    kind = "inference"
    program = "tests.fakes.together:main"
    merges: ClassVar[bool] = True

    def outputs(self, folder: JobFolder) -> list[Output]:
        file = folder.root / "answers.txt"
        return [Output("answers.txt", "report", file)] if file.is_file() else []


def main(folder: Path) -> None:
    """Answer all prompts of all tasks, equal ones once."""
    job = Job.model_validate(trainer_control.open_session(folder).job)
    specs = {job.task_id: job.spec, **{child.task_id: child.spec for child in job.merge_children}}
    joined = batch({task_id: spec["data"]["items"] for task_id, spec in specs.items()})
    answers = joined.spread([_answer(prompt) for prompt in joined.unique])
    results: dict[str, dict[str, Any]] = {}
    for task_id, mine in answers.items():
        left = folder if task_id == job.task_id else folder / "children" / task_id
        left.mkdir(parents=True, exist_ok=True)
        (left / "answers.txt").write_text("\n".join(mine))
        items = [{"index": index, "output": output} for index, output in enumerate(mine)]
        results[task_id] = {"ok": True, "items": items, "usage": {"computed": len(joined.unique)}}
    own = results.pop(job.task_id)
    forgotten = {task_id for task_id, spec in specs.items() if "forget" in spec["data"]["items"]}
    own["children"] = {task_id: result for task_id, result in results.items() if task_id not in forgotten}
    (folder / "responses.json").write_text(json.dumps(own))


def _answer(prompt: str) -> str:
    verb, _, path = prompt.partition(":")
    while verb == "wait" and not Path(path).exists():
        time.sleep(0.05)
    return prompt.upper()


if __name__ == "__main__":
    log_to_stderr("INFO")
    run(load(WorkerSettings), executors=Registry([EchoExecutor(), Together()]))
