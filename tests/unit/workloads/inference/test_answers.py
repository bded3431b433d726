"""Answers on disk, questions that are asked once, and rows for a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import DataError, InputError
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.spec.options.output import JsonlExportSpec
from tunefleet.workloads.engine.protocol import Choice
from tunefleet.workloads.inference.answers import Answers, StoredAnswer


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Item, ask, export, join
    from tunefleet.workloads.inference.items import Item
    from tunefleet.workloads.inference.questions import ask, join
    from tunefleet.workloads.inference.run import export


KEPT = StoredAnswer("<user>a", 3, (Choice("b", "stop", 2, [{"b": -0.5}]), Choice("c", "length", 9)))


def test_answers_are_there_again_and_a_torn_line_is_not(tmp_path: Path) -> None:
    with Answers(tmp_path, {"model": "m"}) as answers:
        answers.add("k1", KEPT)
        answers.add("k2", StoredAnswer("x", 0, (), "too long"))
        path = answers.path
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "k3", "rende')
    with Answers(tmp_path, {"model": "m"}) as answers:
        assert dict(answers.known) == {"k1": KEPT, "k2": StoredAnswer("x", 0, (), "too long")}
        answers.add("k3", KEPT)
    lines = path.read_bytes().splitlines()
    assert path.read_bytes().startswith(whole)
    assert [json.loads(line)["key"] for line in lines[1:]] == ["k1", "k2", "k3"]


def test_answers_of_another_model_are_set_aside(tmp_path: Path) -> None:
    with Answers(tmp_path, {"model": "m", "stamp": "1"}) as answers:
        answers.add("k1", KEPT)
    with Answers(tmp_path, {"model": "m", "stamp": "2"}) as answers:
        assert dict(answers.known) == {}
    assert (tmp_path / "answers.jsonl.old").exists()


def _keys(items: list[str], **inference: Any) -> list[str]:
    asked = ask([Item(text) for text in items], InferenceSpec.model_validate(inference), [], default=None)
    return [question.key for question in asked]


def test_a_prompt_is_asked_twice_only_where_it_may_be_answered_in_two_ways() -> None:
    same: list[dict[str, Any]] = [{"temperature": 0}, {"do_sample": False}, {"seed": 1}]
    assert [len(set(_keys(["a", "b", "a"], **inference))) for inference in same] == [2, 2, 2]
    drawn = _keys(["a", "b", "a"])
    assert len(set(drawn)) == 3
    # Between tasks they are shared all the same.
    assert set(_keys(["a", "a", "a"])) > {drawn[0], drawn[2]}
    assert set(_keys(["a"], temperature=0)) & set(_keys(["a"], temperature=0, system_prompt="Be brief.")) == set()


def test_tasks_that_ask_the_same_share_the_answer() -> None:
    greedy = InferenceSpec(temperature=0)
    one, two = (ask([Item(t) for t in items], greedy, [], default=None) for items in (["a", "b"], ["b", "c", "b"]))
    joined = join({"one": one, "two": two})
    assert [question.prompt for question in joined.unique] == ["a", "b", "c"]
    assert joined.spread(["A", "B", "C"]) == {"one": ["A", "B"], "two": ["B", "C", "B"]}


def test_an_item_names_its_adapter_where_there_are_several() -> None:
    items = [Item("a", {"adapter": "x"}), Item("a", {"adapter": "y"})]
    assert [each.adapter for each in ask(items, InferenceSpec(), ["x", "y"], default=None)] == ["x", "y"]
    assert [each.adapter for each in ask([Item("a")], InferenceSpec(), ["x"], default="x")] == ["x"]
    with pytest.raises(InputError, match=r"Item 0 names the adapter 'z'\. The model has: x"):
        ask([Item("a", {"adapter": "z"})], InferenceSpec(), ["x"], default="x")
    with pytest.raises(InputError, match="Item 0 does not name one of the adapters"):
        ask([Item("a")], InferenceSpec(), ["x", "y"], default=None)


ITEMS: list[dict[str, Any]] = [
    {
        "index": 0,
        "prompt": "p",
        "output": "o",
        "finish_reason": "stop",
        "metadata": {"n": 7, "d": {"a": [1]}, "ö": "ä"},
    },
    {"index": 1, "prompt": "q", "output": None, "error": "too long", "metadata": {"n": None}},
]


def _rows(folder: Path, fields: dict[str, Any], required: list[str] | None = None) -> list[dict[str, Any]]:
    wanted = {"path": "artifacts/deep/rows.jsonl", "fields": fields, "required_fields": required or []}
    told = export(JsonlExportSpec.model_validate(wanted), ITEMS, folder)
    assert told == {"path": "artifacts/deep/rows.jsonl", "record_count": 2, "fields": list(fields)}
    return [json.loads(line) for line in (folder / told["path"]).read_text(encoding="utf-8").splitlines()]


def test_every_exported_value_is_a_text(tmp_path: Path) -> None:
    fields = {"p": "prompt", "o": "output", "n": "metadata.n", "d": "metadata.d", "u": "metadata.ö", "i": "item.index",
              "why": "item.finish_reason", "lit": "plain", "num": {"from": "literal", "value": 5}}  # fmt: skip
    first, second = _rows(tmp_path, fields)
    assert first == {"p": "p", "o": "o", "n": "7", "d": '{"a":[1]}', "u": "ä", "i": "0", "why": "stop",
                     "lit": "plain", "num": "5"}  # fmt: skip
    assert second == {"p": "q", "o": "", "n": "", "d": "", "u": "", "i": "1", "why": "", "lit": "plain", "num": "5"}


def test_what_has_no_value_takes_the_fallback_and_then_the_default(tmp_path: Path) -> None:
    fields = {
        "a": {"source": "output", "fallback": "prompt"},
        "b": {"from": "output", "fallback": {"from": "metadata", "key": "n", "default": "none"}},
        "c": {"from": "metadata", "key": "n", "default": 0},
    }
    assert [list(row.values()) for row in _rows(tmp_path, fields, ["a", "b", "c"])] == [
        ["o", "o", "7"],
        ["q", "none", "0"],
    ]


def test_a_row_without_a_required_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Item 1 has no 'o', which `postprocess\.jsonl_export` requires"):
        _rows(tmp_path, {"p": "prompt", "o": "output"}, ["o"])
    assert list(tmp_path.rglob("*.jsonl")) == []
