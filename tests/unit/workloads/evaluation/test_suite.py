"""How answers of a suite are scored, and which rows and schemas cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import DataError, InputError, TunefleetError
from tunefleet.spec.options.scorers import ScorerSpec
from tunefleet.spec.tasks.evaluate_task import EvaluateTaskSpec, EvaluationSpec

pytestmark = pytest.mark.torch
OBJECT = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global accuracy, scorers, suite
    pytest.importorskip("torch")

    from tunefleet.workloads.evaluation import accuracy, scorers, suite


@pytest.mark.parametrize(
    ("spec", "answer", "wanted", "score"),
    [
        ({"type": "exact_match"}, " Paris\n", "paris", True),
        ({"type": "exact_match", "ignore_case": False}, "Paris", "paris", False),
        ({"type": "contains"}, "It is  PARIS, I think", "is paris", True),
        ({"type": "contains"}, "", "paris", False),
        ({"type": "regex", "pattern": r"^yes\b.*sir$"}, "Yes,\nSir", "ignored", True),
        ({"type": "regex"}, "It costs 12 EUR", r"\d+ EUR", True),
        ({"type": "regex", "ignore_case": False}, "12 eur", r"\d+ EUR", False),
        ({"type": "numeric"}, "So the answer is $1,000.00.", "1 + 999 #### 1000", True),
        ({"type": "numeric"}, "I do not know", "7", False),
        ({"type": "numeric", "tolerance": 0.1}, "0.3", "0.2", True),
        ({"type": "numeric", "tolerance": 0.1}, "0.31", "0.2", False),
        ({"type": "f1"}, "The Eiffel Tower!", "eiffel tower", 1.0),
        # Repeated words do not raise the score.
        ({"type": "f1"}, "Paris Paris Paris Paris Paris", "Paris", pytest.approx(1 / 3)),
        ({"type": "f1"}, "a", "A", 1.0),
        ({"type": "f1"}, "$5", "5", 1.0),
        ({"type": "f1"}, "東京です", "東京", pytest.approx(2 / 3)),
        ({"type": "f1"}, "", "Paris", 0.0),
        ({"type": "json_schema", "json_schema": OBJECT}, '{"city": "Rome"}', "", True),
        ({"type": "json_schema", "json_schema": OBJECT}, '```json\n{"city": "Rome"}\n```', "", True),
        ({"type": "json_schema", "json_schema": OBJECT}, '{"city": 3}', "", False),
        ({"type": "json_schema", "json_schema": OBJECT}, 'Here: {"city": "Rome"}', "", False),
        ({"type": "json_schema", "json_schema": {"type": "number"}}, "NaN", "", False),
    ],
)
def test_scores(spec: dict[str, Any], answer: str, wanted: str, score: Any) -> None:
    scorer = ScorerSpec.model_validate(spec)
    assert scorers.reference_fault(scorer, wanted) is None
    assert scorers.build(scorer, "scorers.0")(answer, wanted) == score


@pytest.mark.parametrize(
    ("spec", "wanted", "kind", "message"),
    [
        ({"type": "contains"}, " ", DataError, "answer of row 2 of own.jsonl is empty, which the scorer contains"),
        ({"type": "numeric"}, "none", DataError, "row 2 of own.jsonl contains no number"),
        ({"type": "regex", "name": "form"}, "(", DataError, "not a regular expression .*, which the scorer form needs"),
        (
            {"type": "json_schema", "json_schema": {"type": "text"}},
            "x",
            InputError,
            r"evaluations.3.scorers.0.json_sch",
        ),
        (
            {"type": "json_schema", "json_schema": {"$ref": "http://127.0.0.1:9/a"}},
            "x",
            InputError,
            "outside the schema",
        ),
    ],
)
def test_unusable_rows_and_schemas(spec: dict[str, Any], wanted: str, kind: type[TunefleetError], message: str) -> None:
    evaluation = EvaluationSpec.model_validate({"type": "suite", "data": {"path": "own.jsonl"}, "scorers": [spec]})
    questions = [accuracy.Question(0, "?", "1"), accuracy.Question(1, "?", wanted)]
    with pytest.raises(kind, match=message):
        suite.prepare(evaluation, 3, questions, "own.jsonl")


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ([{"type": "contains"}, {"type": "contains"}], "has the name 'contains', like an earlier one"),
        ([{"type": "regex", "name": "answer"}], "is a field of the items file"),
        ([{"type": "f1", "pattern": "a"}], "is only for type: regex"),
        ([{"type": "json_schema"}], "is required with type: json_schema"),
        ([{"type": "regex", "pattern": "("}], "is not a regular expression"),
        (None, "is required with type: suite"),
    ],
)
def test_mistakes_in_the_workflow_file(scorer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationSpec.model_validate({"type": "suite", "data": {"path": "own.jsonl"}, "scorers": scorer})


def test_gates_know_the_names_of_the_scores() -> None:
    own = {"type": "suite", "name": "own", "data": {"path": "own.jsonl"}, "scorers": [{"type": "f1"}]}
    spec = {"model": {"source": {"identifier": "m"}}, "evaluations": [own]}
    assert EvaluateTaskSpec.model_validate(spec | {"gates": [{"metric": "own_f1", "at_least": 0.5}]}).gates
    with pytest.raises(ValueError, match="'f1' is not measured"):
        EvaluateTaskSpec.model_validate(spec | {"gates": [{"metric": "f1", "at_least": 0.5}]})
