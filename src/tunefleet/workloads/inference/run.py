"""An inference from beginning to end: items → questions → answers on disk → results, one for each task.

May be killed at any moment and started again on the same folder: what has an answer is not asked again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunefleet import trainer_control
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import InferenceTaskSpec
from tunefleet.workloads.common.item_control import Heeding
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.common.job_secrets import hidden_in
from tunefleet.workloads.common.outputs import write_file
from tunefleet.workloads.engine.protocol import EngineModel
from tunefleet.workloads.inference import engines, result, runner
from tunefleet.workloads.inference.answer_log import Answers, Kept
from tunefleet.workloads.inference.answer_schema import Structure
from tunefleet.workloads.inference.export import export
from tunefleet.workloads.inference.merged_tasks import CHILDREN, Task, fail, read_all, read_tasks
from tunefleet.workloads.inference.questions import Question, join
from tunefleet.workloads.inference.weights import engine_model, runtime_adapters

logger = logging.getLogger(__name__)

_SAMPLES = 8
_REFERENCES = ("reference_answer", "reference", "answer", "response")


def run(folder: Path) -> None:
    """Run the inference of a job folder.

    Raises:
        InputError: If data, model or options cannot be used.
        MachineError: If this machine lacks what the spec asks for.
    """
    task = open_task(folder, InferenceTaskSpec)
    job, spec, session, workspace = task.job, task.spec, task.session, task.workspace
    tasks = read_tasks(task)
    session.status.write(state="running", phase="loading")
    model = engine_model(spec, job.inputs, workspace, engines.choose(spec, job.gpus))
    read_all(tasks, workspace, runtime_adapters(model))
    made = _answer(session, job, tasks, model, spec)
    session.status.write(phase="saving")
    whole = _deliver(tasks, made)
    if "warning" in whole:
        session.journal.event("inference.empty", whole["warning"], "warning")
    _show(session, whole["items"])
    write_file(task.folder.responses_json, json.dumps(hidden_in(whole), indent=1).encode())


def _answer(
    session: trainer_control.JobSession, job: Job, tasks: Sequence[Task], model: EngineModel, spec: InferenceTaskSpec
) -> result.Run:
    """Answer what has no answer yet."""
    structure = Structure(spec.inference) if spec.inference.templates is not None else None
    unique = join({task.task_id: task.questions for task in tasks}).unique
    asked_by: dict[str, str] = {}
    for task in tasks:
        for question in task.questions:
            asked_by.setdefault(question.key, task.task_id)
    with Answers(session.folder, _made_with(model, spec)) as answers:
        before = frozenset(question.key for question in unique if question.key in answers.known)
        left = [question for question in unique if question.key not in before]
        _tell(session, tasks, unique, before)
        engine_name, seconds = str(model.engine), 0.0
        if left:
            with engines.opened(model, job.gpus, session.journal) as engine:
                pace = runner.Pace(session, len(unique), len(before))
                with Heeding(session, kept=answers.path.name, sync=answers.sync) as heeding:

                    def taken(kept: Kept) -> None:
                        pace.take(kept)
                        heeding.heed(pace.done)

                    pace.tell()
                    runner.put(engine, left, spec.inference, answers, taken)
                engine_name, seconds = engine.name, pace.seconds
        known = {question.key: answers.known[question.key] for question in unique}
    text = "1 answer" if len(unique) == 1 else f"{len(unique)} answers"
    text += f", {len(left)} of them made now." if len(left) < len(unique) else "."
    session.journal.event("inference.answered", text, data={"questions": len(unique), "computed": len(left)})
    return result.Run(model, engine_name, known, asked_by, before, structure, seconds)


def _made_with(model: EngineModel, spec: InferenceTaskSpec) -> dict[str, Any]:
    inference = spec.inference
    return {
        "model": [model.path, model.revision, model.engine, model.stamp, model.options],
        "adapters": [[each.name, each.path, each.merge, each.scale] for each in model.adapters],
        "sampling": repr(runner.sampling_of(inference)),
        "chat": [inference.chat_template, inference.chat_template_kwargs],
        "form": 2,  # what an answer has: log-probabilities were mappings in the first
    }


def _tell(
    session: trainer_control.JobSession, tasks: Sequence[Task], unique: Sequence[Question], before: frozenset[str]
) -> None:
    items = sum(len(task.questions) for task in tasks)
    counts = {"tasks": len(tasks), "items": items, "questions": len(unique), "answered": len(before)}
    text = "1 prompt" if items == 1 else f"{items} prompts"
    text += f" of {len(tasks)} tasks" if len(tasks) > 1 else ""
    text += f", {len(unique)} of them different" if len(unique) < items else ""
    text += f"; {len(before)} have answers already" if before else ""
    session.journal.event("inference.started", f"{text}.", data=counts)


def _deliver(tasks: Sequence[Task], made: result.Run) -> dict[str, Any]:
    """Write the files of all tasks, and return the result: that of the job's own, with those of the others."""
    own, *others = tasks
    whole = _of_task(own, made)
    if others:
        whole[CHILDREN] = {task.task_id: _of_child(task, made) for task in others}
    return whole


def _of_child(task: Task, made: result.Run) -> dict[str, Any]:
    if task.error is None:
        try:
            return _of_task(task, made)
        except InputError as error:
            fail(task, error)
    return {"ok": False, "error": task.error}


def _of_task(task: Task, made: result.Run) -> dict[str, Any]:
    """Write the files of one task, and return its result.

    Raises:
        InputError: If none of its items could be answered, or its export lacks something.
    """
    faults = [made.answers[question.key].error for question in task.questions]
    if faults and None not in faults:
        raise InputError(f"None of its {len(faults)} items could be answered: {faults[0]}")
    found = result.build(task, made)
    wanted = task.spec.postprocess.jsonl_export
    if wanted is not None:
        found["jsonl_export"] = export(wanted, hidden_in(found["items"]), task.folder)
    return found


def _show(session: trainer_control.JobSession, items: Sequence[dict[str, Any]]) -> None:
    """Tell the first answers as samples."""
    for item in items[:_SAMPLES]:
        about = item["metadata"]
        reference = next((about[name] for name in _REFERENCES if isinstance(about.get(name), str)), None)
        session.journal.prediction(len(items), item["index"], item["prompt"], item["output"] or "", reference)
