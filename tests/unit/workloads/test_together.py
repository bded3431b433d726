"""Equal prompts are computed once, and everybody gets the answer to their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.workloads.inference.deduplication import batch


@given(st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=2), max_size=6), max_size=5))
def test_each_task_gets_the_answers_to_its_prompts_and_nothing_is_computed_twice(prompts: dict[str, list[str]]) -> None:
    computed: list[str] = []

    def compute(prompt: str) -> str:
        computed.append(prompt)
        return f"answer to {prompt}"

    joined = batch(prompts)
    answers = joined.spread([compute(prompt) for prompt in joined.unique])
    assert answers == {task_id: [f"answer to {prompt}" for prompt in mine] for task_id, mine in prompts.items()}
    assert len(computed) == len({prompt for mine in prompts.values() for prompt in mine})


def test_a_missing_answer_is_no_answer_to_another_prompt() -> None:
    with pytest.raises(ValueError, match="1 answers to 2 prompts"):
        batch({"one": ["a", "b"]}).spread(["A"])
