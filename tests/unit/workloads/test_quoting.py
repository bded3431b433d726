from __future__ import annotations

from tunefleet.workloads.common.answer_extraction import beginning, ending


def test_a_long_text_is_cut_and_says_so() -> None:
    text = "a" * 50 + "\n" + "b" * 50
    assert beginning(text) == "'" + "a" * 50 + "\\n" + "b" * 29 + "…'"
    assert ending(text) == "'…" + "a" * 29 + "\\n" + "b" * 50 + "'"
    assert beginning("It's short.") == ending("It's short.") == '"It\'s short."'
