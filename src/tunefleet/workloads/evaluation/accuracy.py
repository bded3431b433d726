"""Accuracy: the model answers the rows' prompts, and the relevant part of each answer is compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import IntervalOptions, Metric
from tunefleet.errors import DataError
from tunefleet.spec.tasks.evaluate_task import AnswerSpec, EvaluationSpec
from tunefleet.workloads.common.answer_extraction import compare, extractor
from tunefleet.workloads.data.formats import Chat, Example, Pair
from tunefleet.workloads.engine.protocol import Answer, Engine, Request, Sampling
from tunefleet.workloads.engine.server import open_engine
from tunefleet.workloads.evaluation.items import RowSet
from tunefleet.workloads.evaluation.launch import Item, ItemLog, Progress
from tunefleet.workloads.evaluation.model_under_test import EvaluatedModel

# Prompts per call of the engine: it sorts them, and a killed run loses at most some of them.
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Question:
    """The prompt of a row, and its reference answer."""

    index: int
    prompt: str | list[dict[str, Any]]
    reference: str
    tools: list[Any] | None = None


# The fields of an item that score an answer.
Score = Callable[[str, Question], Item]


def prepare(evaluation: EvaluationSpec, rows: RowSet) -> list[Question]:
    """Read the prompts and references of the rows.

    Raises:
        DataError: If a row's reference answer has nothing to compare.
    """
    take = extractor(evaluation.match)
    found = questions_of(evaluation, rows)
    for question in found:
        if take(question.reference) is None:
            raise DataError(
                f"The answer of row {question.index + 1} of {rows.portion.shape.origin} has nothing that "
                f"match.extract: {evaluation.match.extract} can extract.",
                hint="Choose another `match.extract`, or fix the row.",
            )
    return found


def questions_of(evaluation: EvaluationSpec, rows: RowSet) -> list[Question]:
    """Return the prompts and references of the rows.

    Raises:
        DataError: If a row has no prompt or no answer.
    """
    origin = rows.portion.shape.origin
    return [_question(index, example, evaluation, origin) for index, example in enumerate(rows.examples)]


def _question(index: int, example: Example, evaluation: EvaluationSpec, origin: str) -> Question:
    asked, templated = evaluation.generation, evaluation.apply_chat_template
    first: list[dict[str, Any]] = []
    if asked.system_prompt is not None:
        first = [{"role": "system", "content": asked.system_prompt}]
    if isinstance(example, Chat):
        last = max(at for at, message in enumerate(example.messages) if message["role"] == "assistant")
        before = example.messages[:last]
        if not before:
            raise DataError(
                f"{example.place} has no prompt: the only answer of its chat comes first.", hint="Remove the row."
            )
        own = bool(before) and before[0]["role"] == "system"
        reference = str(example.messages[last]["content"])
        return Question(index, before if own else first + before, reference, example.tools)
    if not isinstance(example, Pair):
        raise DataError(
            f"The rows of {origin} have no answers to compare with.", hint="Name prompt_column and response_column."
        )
    if templated:
        return Question(index, [*first, {"role": "user", "content": example.prompt}], example.response)
    start = "" if asked.system_prompt is None else f"{asked.system_prompt}\n\n"
    return Question(index, start + example.prompt, example.response)


def answer(
    evaluation: EvaluationSpec,
    questions: list[Question],
    subject: EvaluatedModel,
    kept: ItemLog,
    progress: Progress,
    score: Score,
) -> None:
    """Answer the remaining rows with the model, and score each answer."""
    progress.start(len(questions), len(kept))
    left = [each for each in questions if each.index not in kept]
    if not left:
        return
    # Free the memory first: the engine loads its own copy of the weights.
    subject.release()
    engine = open_engine(subject.engine_model)
    try:
        for chunk in _chunks(left):
            asked = {each.index: each for each in chunk}
            requests = [_request(engine, each, evaluation.generation, subject) for each in chunk]
            for given in engine.generate(requests):
                # Stored one by one: an answer may take seconds to compute.
                kept.add([_item(asked[given.key], given, score)])
                progress.tell(len(kept))
    finally:
        engine.close()


def metrics(kept: ItemLog, wanted: IntervalOptions) -> dict[str, Metric]:
    """Return the share of right answers."""
    items = list(kept)
    right, n = sum(item["right"] for item in items), len(items)
    interval = statistics.wilson(right, n, wanted)
    return {"accuracy": statistics.metric(right / n, interval, n, "share", better=True, wanted=wanted)}


def _chunks(questions: list[Question]) -> Iterator[list[Question]]:
    source = iter(questions)
    while chunk := list(itertools.islice(source, _AT_ONCE)):
        yield chunk


def _request(engine: Engine, question: Question, asked: AnswerSpec, subject: EvaluatedModel) -> Request:
    prompt, rendered = question.prompt, False
    if not isinstance(prompt, str):
        options = {**(asked.chat_template_kwargs or {}), **({"tools": question.tools} if question.tools else {})}
        prompt, rendered = engine.render(prompt, **options), engine.has_template
    sampling = Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        max_tokens=asked.max_tokens,
        repetition_penalty=asked.repetition_penalty,
        stop=asked.stop,
        # Each row has its own seed, independent of what was answered before it.
        seed=asked.seed + question.index,
    )
    return Request(question.index, prompt, sampling, subject.adapter, rendered)


def _item(question: Question, given: Answer, score: Score) -> Item:
    choice = given.choices[0]
    about = {"answer": choice.text, "finish_reason": choice.finish_reason, "tokens": choice.tokens}
    return {"index": question.index, **score(choice.text, question), **about}


def matching(evaluation: EvaluationSpec) -> Score:
    """Return the score of an exact match."""

    def score(text: str, question: Question) -> Item:
        found = compare(text, question.reference, evaluation.match)
        assert found is not None, "a row with nothing to compare was rejected before"
        return {"right": found.right, "found": found.found, "wanted": found.wanted}

    return score
