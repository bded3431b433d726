"""An answer that is being drawn: which words a token completes."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.workloads.engine.batch_rows import Row
from tunefleet.workloads.engine.protocol import Request, Sampling

VOCABULARY = (" na", " n", "a", "nas", "b", "")


class Letters:
    """A tokenizer whose tokens are texts."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(VOCABULARY[token] for token in tokens)


def row(*words: str, drawn: tuple[int, ...]) -> Row:
    made = Row(Request(0, "", Sampling(bad_words=words)), 0, [], 99, frozenset([5]), Letters())
    made.begin()
    for token in drawn:
        made.take(token)
    return made


@pytest.mark.parametrize(
    ("word", "drawn", "token", "spoilt"),
    [
        # The text is " na n", and "a" makes it " na na".
        pytest.param("n na", (0, 1), 2, False, id="nothing is read twice"),
        pytest.param("na na", (0, 1), 2, True, id="completed by the token"),
        pytest.param("a", (0, 1), 2, True, id="one letter"),
        pytest.param("a", (0, 1), 4, False, id="only what is new"),
        pytest.param("nasb", (3,), 4, True, id="over the whole length"),
        pytest.param("na", (1,), 5, False, id="an end adds nothing"),
    ],
)
def test_a_token_spoils_an_answer_if_it_completes_a_word(
    word: str, drawn: tuple[int, ...], token: int, spoilt: bool
) -> None:
    assert row(word, drawn=drawn).completes_bad_word(token) is spoilt


def test_a_long_word_hides_no_shorter_one_at_the_beginning() -> None:
    assert row("nasb", "x" * 6, drawn=(3,)).completes_bad_word(4)
