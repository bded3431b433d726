"""What a task's result says: its items in order, and what they have cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.workloads.engine.protocol import Choice, EngineModel
from tunefleet.workloads.inference.answer_log import Kept
from tunefleet.workloads.inference.answer_schema import Structure
from tunefleet.workloads.inference.items import Item
from tunefleet.workloads.inference.merged_tasks import Task

# Without a number: a task that is spread over workers says what all of its parts say.
_ALL_EMPTY: Final = (
    "All answers are empty: was the prompt written as the model was trained to read it? See data.separator of its "
    "training, and inference.chat_template."
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has made for all of its tasks.

    Args:
        asked_by: Key of a question → the task that came with it first.
    """

    model: EngineModel
    engine: str
    answers: Mapping[str, Kept]
    asked_by: Mapping[str, str]
    before: frozenset[str]
    structure: Structure | None
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


def _warning(kept: Sequence[Kept]) -> str | None:
    """Return what to say of answers that are all empty; null if one has text, or was ended by what the task forbids."""
    choices = [choice for each in kept for choice in each.choices]
    if not choices or any(choice.text.strip() or choice.finish_reason == "abort" for choice in choices):
        return None
    return _ALL_EMPTY


def _item(number: int, item: Item, kept: Kept, run: Run) -> dict[str, Any]:
    about = {"prompt": item.text, "rendered_prompt": kept.rendered, **item.metadata}
    found: dict[str, Any] = {"index": number, "prompt": item.text, "output": None, "finish_reason": None}
    if item.chat:
        found["messages"] = list(item.chat)
    if kept.error is not None:
        return found | {"metadata": about, "error": kept.error}
    told = [_choice(choice, run.structure) for choice in kept.choices]
    found |= told[0] | {"metadata": about}
    return found if len(told) == 1 else found | {"choices": told}


def _choice(choice: Choice, structure: Structure | None) -> dict[str, Any]:
    found: dict[str, Any] = {"output": choice.text, "finish_reason": choice.finish_reason}
    if choice.logprobs is not None:
        found["logprobs"] = choice.logprobs
    if structure is not None:
        parsed, fault = structure.parse(choice.text, choice.finish_reason)
        found["parsed"] = parsed if fault is None else None
        if fault is not None:
            found["error"] = fault
    return found


def _usage(task: Task, run: Run, kept: Sequence[Kept], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
