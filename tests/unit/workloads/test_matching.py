"""Which answers are right."""

from __future__ import annotations

import pytest

from tunefleet.spec.options.answer_match import MatchSpec
from tunefleet.workloads.common.answer_extraction import compare, extractor, final_number, last_number, number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so it is 5.\n#### 1,234", "1234"),
        ("#### 3\nQuestion: how much is it?\n#### $70,000.00", "3"),
        ("#### none yet\n#### $70,000.00", "70000"),
        ("#### -2.50 dollars", "-2.5"),
        ("#### none", None),
        ("He pays 12 and gets 3.0 back", "3"),
        ("about 50% of 20", "20"),
        ("no numbers here", None),
        ("", None),
    ],
)
def test_final_numbers_as_gsm8k_has_them(text: str, found: str | None) -> None:
    assert final_number(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("read pages 3-7", "7"),
        ("$18-$20", "20"),
        ("from 5%-6%", "6"),
        ("f(3)-7", "7"),
        ("x-5", "5"),
        ("it is -5", "-5"),
        ("= -$5", "-5"),
        ("$-5.50", "-5.5"),
        ("(-5)", "-5"),
        ("3.5e3", "3500"),
        ("about 2E-3 grams", "0.002"),
        ("3 eggs, 4em", "4"),
        ("0e7", "0"),
        ("1e999999999", None),
    ],
)
def test_a_minus_is_a_sign_where_nothing_stands_before_it_and_exponents_count(text: str, found: str | None) -> None:
    assert last_number(text) == found


def test_numbers_have_one_spelling() -> None:
    assert {number(text) for text in ("1,000", "1000", "$1000.00", "1000.", "1 000")} == {"1000"}
    assert number("-0.0") == number("0") == "0"
    assert number("1" * 1000) is None, "nobody asked for that"
    assert last_number("from 3 to 1,5 and .5") == "0.5"


@pytest.mark.parametrize(
    ("match", "answer", "reference", "right"),
    [
        ({"extract": "gsm8k"}, "The answer is 18.", "9 * 2 = 18\n#### 18", True),
        ({"extract": "gsm8k"}, "#### 17\nThat is 18", "#### 18", False),
        ({"extract": "number"}, "#### 17\nThat is 18", "18", True),
        ({"extract": "text"}, "  New   York ", "new york", True),
        ({"extract": "text", "ignore_case": False}, "New York", "new york", False),
        ({"extract": "text"}, "New York.", "New York", False),
        ({"extract": "text", "ignore_punctuation": True}, "New York.", "New York", True),
        ({"extract": "regex", "pattern": r"\((\w)\)"}, "it is (a), no, (B)", "(b)", True),
        ({"extract": "regex", "pattern": r"=\s*([\d.,]+)"}, "x = 1,000.0", "x = 1000", True),
        ({"extract": "regex", "pattern": r"Answer: (\w*)"}, "Answer: ", "Answer: yes", False),
        ({"extract": "text"}, " ", "yes", False),
    ],
)
def test_verdicts(match: dict[str, object], answer: str, reference: str, right: bool) -> None:
    verdict = compare(answer, reference, MatchSpec.model_validate(match))
    assert verdict is not None
    assert verdict.right is right


@pytest.mark.parametrize(
    ("match", "reference"),
    [
        ({}, "eighteen"),
        ({"extract": "regex", "pattern": r"Answer: (\w*)"}, "Answer: "),
        ({"extract": "text"}, " \n"),
        ({"extract": "text", "ignore_punctuation": True}, "?!"),
        ({"extract": "text"}, "<think>2 + 2</think>\n"),
    ],
)
def test_a_reference_with_nothing_to_compare_has_no_verdict(match: dict[str, object], reference: str) -> None:
    wanted = MatchSpec.model_validate(match)
    assert compare(reference, reference, wanted) is None
    assert extractor(wanted)(reference) is None, "by which a run refuses the row before it starts"


def test_a_thought_in_front_of_an_answer_does_not_count() -> None:
    verdict = compare("<think>\n2 + 2\n</think>\n\nfour", "four", MatchSpec.model_validate({"extract": "text"}))
    assert verdict is not None
    assert verdict.right
