"""What a task is told of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunefleet.spec import InferenceTaskSpec, load_task_spec
from tunefleet.workloads.engine.protocol import Choice, EngineModel
from tunefleet.workloads.inference.answers import StoredAnswer


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Item, Task, ask, result
    from tunefleet.workloads.inference import run as result
    from tunefleet.workloads.inference.items import Item
    from tunefleet.workloads.inference.merged_tasks import Task
    from tunefleet.workloads.inference.questions import ask


def test_answers_that_were_aborted_are_counted_beside_those_that_failed() -> None:
    kept = (
        StoredAnswer("good", 1, (Choice("yes", "stop", 1),)),
        StoredAnswer("stuck", 1, (Choice("", "length", 1), Choice("", "abort", 0))),
        StoredAnswer("long", 0, (), "too long"),
    )
    usage = built(*kept)["usage"]
    assert (usage["num_requests"], usage["failed"], usage["aborted"]) == (3, 1, 1)


EMPTY = StoredAnswer("a", 1, (Choice(" \n", "stop", 1),))
ABORTED = StoredAnswer("b", 1, (Choice("", "abort", 0),))
LONG = StoredAnswer("c", 0, (), "too long")
GOOD = StoredAnswer("d", 1, (Choice("yes", "stop", 1),))


@pytest.mark.parametrize(
    ("kept", "warned"),
    [
        ((EMPTY, EMPTY, LONG), True),
        ((EMPTY,), True),
        ((EMPTY, GOOD), False),
        ((EMPTY, ABORTED), False),
        ((LONG,), False),
    ],
    ids=["all", "the only one", "not all", "aborted", "none"],
)
def test_answers_that_are_all_empty_are_warned_of(kept: tuple[StoredAnswer, ...], *, warned: bool) -> None:
    found = built(*kept)
    assert ("warning" in found) is warned
    assert not warned or found["warning"].startswith("All answers are empty: does the prompt have the format")


def built(*kept: StoredAnswer) -> dict[str, Any]:
    """Return the result of a task with an item for each of these."""
    texts = [f"item {number}" for number in range(len(kept))]
    given = {
        "taskType": "inference",
        "model": {"source": {"identifier": "m"}},
        "data": {"type": "list", "items": texts},
    }
    spec = load_task_spec(given)
    assert isinstance(spec, InferenceTaskSpec)
    items = [Item(text) for text in texts]
    questions = ask(items, spec.inference, (), default=None)
    answers = {question.key: each for question, each in zip(questions, kept, strict=True)}
    run = result.Run(
        EngineModel("m", "m"), "transformers", answers, dict.fromkeys(answers, "t"), frozenset(), None, 1.0
    )
    return result.build(Task("t", spec, {}, Path(), items, questions), run)
