"""The program of an inference task: items → questions → answers on disk → one result per task.

May be killed at any time and relaunched in the same folder: a question with an answer is not asked again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet import trainer_control
from tunefleet.errors import DataError, InputError
from tunefleet.fsutil import write_file
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import InferenceTaskSpec
from tunefleet.spec.expressions.lookup import as_text
from tunefleet.spec.options.output import ExportField, JsonlExportSpec
from tunefleet.workloads.common.item_control import ItemControl
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.common.job_secrets import redacted_in
from tunefleet.workloads.engine.protocol import Choice, EngineModel
from tunefleet.workloads.inference import engines, runner
from tunefleet.workloads.inference.answers import Answers, AnswerSchema, StoredAnswer
from tunefleet.workloads.inference.engines import engine_model, runtime_adapters
from tunefleet.workloads.inference.items import Item
from tunefleet.workloads.inference.merged_tasks import CHILDREN, Task, fail, read_all, read_tasks
from tunefleet.workloads.inference.questions import Question, join

logger = logging.getLogger(__name__)

_SAMPLES = 8
_REFERENCES = ("reference_answer", "reference", "answer", "response")
# Without a count, so that all shards of a sharded task report the same sentence.
_ALL_EMPTY: Final = (
    "All answers are empty: does the prompt have the format of the training data? Check data.separator of the "
    "training run, and inference.chat_template."
)


def run(folder: Path) -> None:
    """Run the inference of a job folder.

    Raises:
        InputError: If data, model or options cannot be used.
        MachineError: If this machine lacks a requirement of the spec.
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
    write_file(task.folder.responses_json, json.dumps(redacted_in(whole), indent=1).encode())


def _answer(
    session: trainer_control.JobSession, job: Job, tasks: Sequence[Task], model: EngineModel, spec: InferenceTaskSpec
) -> Run:
    """Answer the remaining questions."""
    structure = AnswerSchema(spec.inference) if spec.inference.templates is not None else None
    unique = join({task.task_id: task.questions for task in tasks}).unique
    asked_by: dict[str, str] = {}
    for task in tasks:
        for question in task.questions:
            asked_by.setdefault(question.key, task.task_id)
    with Answers(session.folder, _made_with(model, spec)) as answers:
        # Taken before the run: the usage separates resumed from computed answers.
        before = frozenset(question.key for question in unique if question.key in answers.known)
        left = [question for question in unique if question.key not in before]
        _tell(session, tasks, unique, before)
        engine_name, seconds = str(model.engine), 0.0
        if left:
            with engines.opened(model, job.gpus, session.journal) as engine:
                throughput = runner.Throughput(session, len(unique), len(before))
                with ItemControl(session, kept=answers.path.name, sync=answers.sync) as heeding:

                    def taken(kept: StoredAnswer) -> None:
                        throughput.take(kept)
                        heeding.heed(throughput.done)

                    throughput.tell()
                    runner.put(engine, left, spec.inference, answers, taken)
                engine_name, seconds = engine.name, throughput.seconds
        known = {question.key: answers.known[question.key] for question in unique}
    text = "1 answer" if len(unique) == 1 else f"{len(unique)} answers"
    text += f", {len(left)} of them computed now." if len(left) < len(unique) else "."
    session.journal.event("inference.answered", text, data={"questions": len(unique), "computed": len(left)})
    return Run(model, engine_name, known, asked_by, before, structure, seconds)


def _made_with(model: EngineModel, spec: InferenceTaskSpec) -> dict[str, Any]:
    inference = spec.inference
    return {
        "model": [model.path, model.revision, model.engine, model.stamp, model.options],
        "adapters": [[each.name, each.path, each.merge, each.scale] for each in model.adapters],
        "sampling": repr(runner.sampling_of(inference)),
        "chat": [inference.chat_template, inference.chat_template_kwargs],
        "form": 2,  # format of an answer; in format 1, log probabilities were mappings
    }


def _tell(
    session: trainer_control.JobSession, tasks: Sequence[Task], unique: Sequence[Question], before: frozenset[str]
) -> None:
    items = sum(len(task.questions) for task in tasks)
    counts = {"tasks": len(tasks), "items": items, "questions": len(unique), "answered": len(before)}
    text = "1 prompt" if items == 1 else f"{items} prompts"
    text += f" of {len(tasks)} tasks" if len(tasks) > 1 else ""
    text += f", {len(unique)} of them different" if len(unique) < items else ""
    text += f"; {len(before)} already have answers" if before else ""
    session.journal.event("inference.started", f"{text}.", data=counts)


def _deliver(tasks: Sequence[Task], made: Run) -> dict[str, Any]:
    """Write the files of all tasks; return the result of the job's own task, with those of the others."""
    own, *others = tasks
    whole = _of_task(own, made)
    if others:
        whole[CHILDREN] = {task.task_id: _of_child(task, made) for task in others}
    return whole


def _of_child(task: Task, made: Run) -> dict[str, Any]:
    if task.error is None:
        try:
            return _of_task(task, made)
        except InputError as error:
            fail(task, error)
    return {"ok": False, "error": task.error}


def _of_task(task: Task, made: Run) -> dict[str, Any]:
    """Write the files of one task; return its result.

    Raises:
        InputError: If none of its items could be answered, or its export lacks a required field.
    """
    faults = [made.answers[question.key].error for question in task.questions]
    if faults and None not in faults:
        raise InputError(f"None of the {len(faults)} items could be answered: {faults[0]}")
    found = build(task, made)
    wanted = task.spec.postprocess.jsonl_export
    if wanted is not None:
        found["jsonl_export"] = export(wanted, redacted_in(found["items"]), task.folder)
    return found


def _show(session: trainer_control.JobSession, items: Sequence[dict[str, Any]]) -> None:
    """Report the first answers as samples."""
    for item in items[:_SAMPLES]:
        about = item["metadata"]
        reference = next((about[name] for name in _REFERENCES if isinstance(about.get(name), str)), None)
        session.journal.prediction(len(items), item["index"], item["prompt"], item["output"] or "", reference)


def export(wanted: JsonlExportSpec, items: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Write the file atomically.

    Raises:
        DataError: If a line lacks a required field; names item and field.
    """
    lines = [_line(wanted, number, item) for number, item in enumerate(items)]
    target = folder / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    return {"path": wanted.path, "record_count": len(lines), "fields": list(wanted.fields)}


def _line(wanted: JsonlExportSpec, number: int, item: Mapping[str, Any]) -> dict[str, str]:
    line = {}
    for name, field in wanted.fields.items():
        text = as_text_or_empty(_value(field, item))
        if not text and name in wanted.required_fields:
            raise DataError(
                f"Item {item.get('index', number)} has no {name!r}, which `postprocess.jsonl_export` requires.",
                hint="Remove it from required_fields, or give the field a fallback or a default.",
            )
        line[name] = text
    return line


def as_text_or_empty(value: Any) -> str:
    """Return a value as an exported text: text unchanged, None as an empty text, anything else as JSON."""
    return "" if value is None else as_text(value)


def _value(field: ExportField, item: Mapping[str, Any]) -> Any:
    found = _found(field, item)
    if found in (None, "") and field.other is not None:
        found = _value(field.other, item)
    return field.default if found in (None, "") and field.default is not None else found


def _found(field: ExportField, item: Mapping[str, Any]) -> Any:
    if field.kind == "literal":
        return field.text
    if field.kind in {"prompt", "output"}:
        return item.get(field.kind)
    place = item if field.kind == "item" else item.get("metadata") or {}
    return place.get(field.key or "")


@dataclass(frozen=True, slots=True)
class Run:
    """The answers of a run for all of its tasks.

    Args:
        asked_by: Key of a question → the first task with it.
    """

    model: EngineModel
    engine: str
    answers: Mapping[str, StoredAnswer]
    asked_by: Mapping[str, str]
    before: frozenset[str]
    structure: AnswerSchema | None
    seconds: float


def build(task: Task, run: Run) -> dict[str, Any]:
    """Return the result of one task, without its export."""
    kept = [run.answers[question.key] for question in task.questions]
    items = [_item(number, item, each, run) for number, (item, each) in enumerate(zip(task.items, kept, strict=True))]
    warning = _warning(kept)
    return ({} if warning is None else {"warning": warning}) | {
        "ok": True,
        "task_id": task.task_id,
        "model": run.model.identifier,
        "engine": run.engine,
        "items": items,
        "count": len(items),
        "usage": _usage(task, run, kept, items),
    }


def _warning(kept: Sequence[StoredAnswer]) -> str | None:
    """Return the warning if all answers are empty; None if one has text, or was aborted by a limit of the task."""
    choices = [choice for each in kept for choice in each.choices]
    if not choices or any(choice.text.strip() or choice.finish_reason == "abort" for choice in choices):
        return None
    return _ALL_EMPTY


def _item(number: int, item: Item, kept: StoredAnswer, run: Run) -> dict[str, Any]:
    about = {"prompt": item.text, "rendered_prompt": kept.rendered, **item.metadata}
    found: dict[str, Any] = {"index": number, "prompt": item.text, "output": None, "finish_reason": None}
    if item.chat:
        found["messages"] = list(item.chat)
    if kept.error is not None:
        return found | {"metadata": about, "error": kept.error}
    choices = [_choice(choice, run.structure) for choice in kept.choices]
    found |= choices[0] | {"metadata": about}
    return found if len(choices) == 1 else found | {"choices": choices}


def _choice(choice: Choice, structure: AnswerSchema | None) -> dict[str, Any]:
    found: dict[str, Any] = {"output": choice.text, "finish_reason": choice.finish_reason}
    if choice.logprobs is not None:
        found["logprobs"] = choice.logprobs
    if structure is not None:
        parsed, fault = structure.parse(choice.text, choice.finish_reason)
        found["parsed"] = parsed if fault is None else None
        if fault is not None:
            found["error"] = fault
    return found


def _usage(task: Task, run: Run, kept: Sequence[StoredAnswer], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    prompt = sum(each.prompt_tokens for each in kept)
    completion = sum(choice.tokens for each in kept for choice in each.choices)
    own = {question.key for question in task.questions if run.asked_by[question.key] == task.task_id}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "latency_sec": round(run.seconds, 3),
        "num_requests": len(items),
        "computed": len(own - run.before),
        "resumed": len(own & run.before),
        "deduplicated": len(items) - len(own),
        "failed": sum(each.error is not None for each in kept),
        "aborted": sum(any(choice.finish_reason == "abort" for choice in each.choices) for each in kept),
        "invalid": sum(
            any("error" in choice for choice in item.get("choices", [item])) and item["output"] is not None
            for item in items
        ),
    }
