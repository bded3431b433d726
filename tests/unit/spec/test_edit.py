"""Changing values of a document before it is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.documents import EVERYTHING, SMALLEST
from tunefleet.errors import SpecError
from tunefleet.spec import LoraSftSpec, deep_set, override_document, parse_value, parse_workflow


def test_set_in_a_spec_and_in_a_document() -> None:
    spec: dict[str, Any] = {"data": {"prompts": ["a", "b"]}}
    deep_set(spec, "training.learning_rate", 1e-3)
    deep_set(spec, "data.prompts.1", "c")
    assert spec == {"data": {"prompts": ["a", "c"]}, "training": {"learning_rate": 1e-3}}
    whole: dict[str, Any] = {"apiVersion": "x", "spec": {"training": None}}
    deep_set(whole, "training.seed", 1)
    deep_set(whole, "spec.priority", 2)
    deep_set(whole, "metadata.name", "n")
    assert whole == {"apiVersion": "x", "spec": {"training": {"seed": 1}, "priority": 2}, "metadata": {"name": "n"}}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is not a path"),
        ("a..b", "is not a path"),
        ("data.prompts.7", "not an entry of the list"),
        ("data.prompts.x", "not an entry of the list"),
        ("data.path.deeper", r"passes through data\.path"),
    ],
)
def test_paths_that_do_not_fit(path: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        deep_set({"data": {"prompts": ["a"], "path": "x"}}, path, 1)


def test_lists_inside_lists() -> None:
    spec: dict[str, Any] = {"a": [[1, 2], {"b": 3}]}
    deep_set(spec, "a.0.1", 5)
    deep_set(spec, "a.1.b", 6)
    assert spec == {"a": [[1, 5], {"b": 6}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("5e-7", 5e-7),
        ("true", True),
        ("[a, 1]", ["a", 1]),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("./a b.jsonl", "./a b.jsonl"),
        ("a: b: c", "a: b: c"),
        ("[", "["),
    ],
)
def test_values_of_the_command_line(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_a_document_with_other_values() -> None:
    assert override_document(EVERYTHING, {}) == EVERYTHING
    text = override_document(EVERYTHING, {"training.learning_rate": 0.5, "lora.r": 4, "metadata.name": "é"})
    workflow = parse_workflow(text)
    before = parse_workflow(EVERYTHING).tasks[0].spec
    after = workflow.tasks[0].spec
    assert isinstance(before, LoraSftSpec)
    assert isinstance(after, LoraSftSpec)
    assert (workflow.name, after.training.learning_rate, after.lora.r) == ("é", 0.5, 4)
    assert after.data == before.data
    assert after.training == before.training.model_copy(update={"learning_rate": 0.5})


def test_an_alias_is_changed_in_one_place_only() -> None:
    text = SMALLEST.replace("spec:", "metadata: {annotations: {same: &list [logs]}}\nspec:")
    changed = override_document(text + "  output: {artifacts: *list}\n", {"output.artifacts.0": "responses.json"})
    assert parse_workflow(changed).tasks[0].spec.output.artifacts == ("responses.json",)
    assert "same:\n    - logs" in changed


def test_a_document_that_is_none() -> None:
    with pytest.raises(SpecError, match="not a mapping"):
        override_document("[1]", {"a": 1}, filename="x.yaml")
    with pytest.raises(SpecError, match=r"x\.yaml"):
        override_document("a: [", {"a": 1}, filename="x.yaml")
