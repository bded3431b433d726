"""Evaluations beside each other, and what must not stand there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tunefleet.analysis.evaluation.comparison import compare
from tunefleet.cli.tasks.compare import _difference
from tunefleet.errors import ConflictError, InputError


def evaluated(fingerprint: str = "f", *, name: str = "accuracy", value: float = 0.5, **more: Any) -> dict[str, Any]:
    metric = {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 40, "unit": "share",
              "higher_is_better": True, "confidence": 0.95}  # fmt: skip
    about = {"type": "exact_match", "fingerprint": fingerprint, "metrics": [name], "data": {"digest": "d"},
             "settings": {}, "pairs": {name: {"file": "items/a.jsonl", "part": "right", "weight": None}}}  # fmt: skip
    return {"metrics": {name: metric}, "evaluations": [about | more]}


def items(folder: Path, **right: list[bool]) -> Any:
    for task, verdicts in right.items():
        lines = [json.dumps({"index": index, "right": each}) for index, each in enumerate(verdicts)]
        (folder / task).write_text("\n".join(lines) + "\n")
    return lambda task, _: folder / task


def test_pairs_of_items_tell_who_is_better(tmp_path: Path) -> None:
    found = items(tmp_path, a=[False] * 20 + [True] * 20, b=[True] * 30 + [True] * 8 + [False] * 2)
    (row,) = compare({"a": evaluated(), "b": evaluated(value=0.95)}, found)
    change = row.differences[1]
    assert change is not None
    assert (change.value, change.verdict) == (pytest.approx(0.45), "better")
    assert change.p == pytest.approx(2 * sum((1, 22, 231)) / 2**22)
    (row,) = compare({"b": evaluated(value=0.95), "a": evaluated()}, found)
    assert row.differences[1] is not None
    assert row.differences[1].verdict == "worse"


@pytest.mark.parametrize(
    ("theirs", "p", "verdict"), [([True] * 4, 0.125, "none"), ([True] * 6, 0.03125, "better")], ids=["4", "6"]
)
def test_of_right_and_wrong_items_the_exact_test_has_the_verdict(
    tmp_path: Path, theirs: list[bool], p: float, verdict: str
) -> None:
    found = items(tmp_path, a=[False] * 12, b=theirs + [False] * (12 - len(theirs)))
    (row,) = compare({"a": evaluated(), "b": evaluated()}, found)
    change = row.differences[1]
    assert change is not None
    assert change.low is not None
    assert change.low > 0, "the interval alone would say better"
    assert (change.p, change.verdict) == (p, verdict)


def test_perplexities_differ_by_a_factor_that_is_the_exponent_of_the_losses_difference(tmp_path: Path) -> None:
    for task, more in (("a", 0.5), ("b", 0.0)):
        lines = [json.dumps({"index": index, "sum": (2 + more + index % 3 / 9) * 8, "n": 8}) for index in range(30)]
        (tmp_path / task).write_text("\n".join(lines) + "\n")
    result = evaluated(name="perplexity", value=7.0)
    result["metrics"]["perplexity"]["higher_is_better"] = False
    result["evaluations"][0]["pairs"] = {"perplexity": {"file": "f", "part": "sum", "weight": "n", "exp": True}}
    (row,) = compare({"a": result, "b": result}, lambda task, _: tmp_path / task)
    change = row.differences[1]
    assert change is not None
    assert (change.factor, change.verdict, change.p) == (True, "better", None)
    assert change.value == pytest.approx(math.exp(-0.5))
    assert (change.low, change.high) == (pytest.approx(change.value), pytest.approx(change.value))
    assert _difference(change).plain == "×0.6065 [×0.6065, ×0.6065] better"


def test_without_the_same_items_no_difference_is_claimed(tmp_path: Path) -> None:
    found = items(tmp_path, a=[True, False], b=[True])
    (row,) = compare({"a": evaluated(), "b": evaluated(value=0.9)}, found)
    assert row.differences[1] is not None
    assert (row.differences[1].verdict, row.differences[1].low) == ("none", None)


def test_what_was_measured_otherwise_is_refused(tmp_path: Path) -> None:
    other = evaluated("g", data={"digest": "e"})
    with pytest.raises(ConflictError, match="accuracy of b cannot be compared with that of a: the rows differ"):
        compare({"a": evaluated(), "b": other}, items(tmp_path))
    with pytest.raises(ConflictError, match="the settings differ"):
        compare({"a": evaluated(), "b": evaluated("g", settings={"match": {}})}, items(tmp_path))
    (row,) = compare({"a": evaluated(), "b": other}, items(tmp_path), force=True)
    assert (row.comparable, row.differences) == (False, [None, None])
    with pytest.raises(InputError, match="no metric in common"):
        compare({"a": evaluated(), "b": evaluated(name="other")}, items(tmp_path))
    with pytest.raises(InputError, match="b is not an evaluation"):
        compare({"a": evaluated(), "b": {"ok": True}}, items(tmp_path))
