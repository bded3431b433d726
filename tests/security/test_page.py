"""The page on security: each of its claims names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import check_docs

PAGE = check_docs.ROOT / "docs" / "explanation" / "security.md"
CLAIM = re.compile(r"^\| (\d+) \| (.+) \| (.*) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def faults(text: str, root: Path = check_docs.ROOT) -> list[str]:
    """Return what is wrong with the claims of a page, a line each."""
    found = []
    claims = CLAIM.findall(text)
    if (numbers := [int(number) for number, _, _ in claims]) != list(range(1, len(claims) + 1)):
        found.append(f"the claims are numbered {numbers}")
    for number, _, named in claims:
        tests = TEST.findall(named)
        if not tests or TEST.sub("", named).strip(", "):
            found.append(f"{number}: names no test, or something else: {named!r}")
        for file, test in tests:
            if not (root / file).is_file() or test not in check_docs.test_names(root / file):
                found.append(f"{number}: {file}::{test} does not exist")
    return found


def test_each_claim_names_a_test_that_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(CLAIM.findall(text)) > 80
    assert len(re.findall(r"^\| \d", text, re.MULTILINE)) == len(CLAIM.findall(text)), "a row is written otherwise"
    assert faults(text) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("| 1 | All is well. |  |", "1: names no test"),
        ("| 1 | All is well. | by inspection |", "1: names no test"),
        ("| 1 | All is well. | `tests/security/test_page.py::test_that_nobody_wrote` |", "does not exist"),
        ("| 1 | All is well. | `tests/security/test_nothing.py::test_it` |", "does not exist"),
        (
            "| 2 | All is well. | `tests/security/test_page.py::test_each_claim_names_a_test_that_is_there` |",
            "numbered",
        ),
    ],
)
def test_a_claim_without_one_is_found(rows: str, said: str) -> None:
    (fault,) = faults(rows)
    assert said in fault
