"""What a task is told of its answers."""

from __future__ import annotations

from pathlib import Path

from tunefleet.programs.engine.protocol import Choice, EngineModel
from tunefleet.programs.infer import result
from tunefleet.programs.infer.answers import Kept
from tunefleet.programs.infer.items import Item
from tunefleet.programs.infer.questions import ask
from tunefleet.programs.infer.tasks import Task
from tunefleet.spec import InferenceTaskSpec, load_task_spec


def test_answers_that_were_aborted_are_counted_beside_those_that_failed() -> None:
    texts = ["good", "stuck", "long"]
    given = {
        "taskType": "inference",
        "model": {"source": {"identifier": "m"}},
        "data": {"type": "list", "items": texts},
    }
    spec = load_task_spec(given)
    assert isinstance(spec, InferenceTaskSpec)
    items = [Item(text) for text in texts]
    questions = ask(items, spec.inference, (), default=None)
    kept = (
        Kept("good", 1, (Choice("yes", "stop", 1),)),
        Kept("stuck", 1, (Choice("", "length", 1), Choice("", "abort", 0))),
        Kept("long", 0, (), "too long"),
    )
    answers = {question.key: each for question, each in zip(questions, kept, strict=True)}
    run = result.Run(
        EngineModel("m", "m"), "transformers", answers, dict.fromkeys(answers, "t"), frozenset(), None, 1.0
    )
    usage = result.build(Task("t", spec, {}, Path(), items, questions), run)["usage"]
    assert (usage["num_requests"], usage["failed"], usage["aborted"]) == (3, 1, 1)
