"""Which question of a row is asked, and which rows cannot be asked."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import DataError
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.data.formats import Chat, Pair, Place, Plain

pytestmark = pytest.mark.torch
ASK, SAY = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "four"}
EVALUATION = EvaluationSpec.model_validate({"type": "exact_match", "data": {"path": "rows.jsonl"}})


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global accuracy
    pytest.importorskip("torch")

    from tunefleet.workloads.evaluation import accuracy


def test_a_row_is_asked_up_to_its_last_answer() -> None:
    pair = accuracy._question(0, Pair("2 + 2?\n", "four"), EVALUATION, "rows")
    assert (pair.prompt, pair.reference) == ("2 + 2?\n", "four")
    chat = accuracy._question(1, Chat([ASK, SAY, ASK, {**SAY, "content": "4"}]), EVALUATION, "rows")
    assert (chat.prompt, chat.reference) == ([ASK, SAY, ASK], "4")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Chat([SAY, ASK], place=Place(3, "rows")), "Row 3 of rows has no prompt"),
        (Plain("four", Place(3, "rows")), "rows of rows have no answers"),
    ],
)
def test_what_asks_nothing_is_refused(example: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        accuracy._question(2, example, EVALUATION, "rows")
