"""Suites: the model answers your own questions, and scorers score each answer."""

from __future__ import annotations

import math

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import IntervalOptions, Metric
from tunefleet.errors import DataError
from tunefleet.spec.options.scorers import ScorerSpec
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.common.answer_extraction import without_reasoning
from tunefleet.workloads.evaluation import scorers
from tunefleet.workloads.evaluation.accuracy import Question, Score
from tunefleet.workloads.evaluation.launch import Item, ItemLog


def prepare(evaluation: EvaluationSpec, index: int, questions: list[Question], origin: str) -> Score:
    """Return the scorers of a suite as one function, after a check of every row's reference answer.

    Args:
        index: Index of the evaluation, for messages.
        origin: Name of the data, for messages.

    Raises:
        InputError: If the schema of a scorer is not a JSON Schema.
        DataError: If a row's reference answer cannot be scored against.
    """
    made = {
        each.label: scorers.build(each, f"spec.evaluations.{index}.scorers.{at}")
        for at, each in enumerate(evaluation.scorers or ())
    }
    for each in evaluation.scorers or ():
        for question in questions:
            fault = scorers.reference_fault(each, question.reference)
            if fault is not None:
                raise DataError(
                    f"The answer of row {question.index + 1} of {origin} {fault}, which the scorer {each.label} needs.",
                    hint="Fix the row, or remove the scorer.",
                )

    def score(text: str, question: Question) -> Item:
        answer = without_reasoning(text)
        return {label: scorer(answer, question.reference) for label, scorer in made.items()}

    return score


def metrics(evaluation: EvaluationSpec, kept: ItemLog, wanted: IntervalOptions) -> dict[str, Metric]:
    """Return the mean of each score over the rows."""
    return {
        each.label: _metric(each, [float(item[each.label]) for item in kept], wanted)
        for each in evaluation.scorers or ()
    }


def _metric(scorer: ScorerSpec, scores: list[float], wanted: IntervalOptions) -> Metric:
    n, total = len(scores), math.fsum(scores)
    if scorer.type == "f1":
        interval = statistics.ratio(scores, [1.0] * n, wanted)
        return statistics.metric(total / n, interval, n, "1", better=True, wanted=wanted)
    return statistics.metric(
        total / n, statistics.wilson(int(total), n, wanted), n, "share", better=True, wanted=wanted
    )
