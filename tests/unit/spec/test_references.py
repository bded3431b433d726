"""References become what they name, with its own type; a result can name nothing itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.errors import InputError, ReferenceFault
from tunefleet.spec import ConditionSpec, fill_secrets, resolve, secrets_of, unmet
from tunefleet.spec.expressions.placeholders import Escape, Reference, Secret, Stray, escape, pieces

RESULT = {
    "items": [{"output": "one", "score": 0.5}, {"output": "two", "score": 1}],
    "n": 7,
    "ok": True,
    "nothing": None,
    "final_lora_archive_url": "http://server/final_lora.tar.gz",
    "final_model_archive": "final_model.tar.gz",
    "final_model_archive_url": "http://server/final_model.tar.gz",
    "metrics": {"eval.loss": 0.25},
    "metadata": "of the result",
}
ENVELOPE = {
    "task_id": "task-1",
    "worker_id": "w1",
    "metadata": {"node": "rack-3"},
    "received_at": "2026-01-01T00:00:00Z",
    "result": RESULT,
}
NAMES = {"a": ENVELOPE, "a.b": {**ENVELOPE, "task_id": "task-2"}}


def value(text: str) -> Any:
    return resolve({"x": text}, NAMES)["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a.result.n}", 7),
        (" ${ a.n } ", 7),
        ("${a.ok}", True),
        ("${a.task_id}", "task-1"),
        ("${a.b.task_id}", "task-2"),
        ("${a.result.items}", RESULT["items"]),
        ("${a.items.1.output}", "two"),
        ("${a.result.items[1].output}", "two"),
        ("${a.items[0]}", RESULT["items"][0]),
        ("${a.items.output}", ["one", "two"]),
        ('${a.metrics["eval.loss"]}', 0.25),
        ("${a.final_lora_archive}", "http://server/final_lora.tar.gz"),
        ("${a.result.final_model_archive}", "http://server/final_model.tar.gz"),
        ("${a.metadata.node}", "rack-3"),
        ("${a.result.metadata}", "of the result"),
        ("n=${a.n}, ok=${a.ok}, ${a.items[0].output}!", "n=7, ok=true, one!"),
        ("${a.n}${a.n}", "77"),
        ("scores ${a.items.score}", "scores [0.5,1]"),
        ("$${a.n} and ${a.n}", "$${a.n} and 7"),
        ("${secret:TOKEN} ${a.n}", "${secret:TOKEN} 7"),
    ],
)
def test_what_a_reference_becomes(text: str, expected: Any) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "${a.result.final_lora_archive_ulr}",
            "result of a has no 'final_lora_archive_ulr'",
            "Did you mean final_lora_archive_url?",
        ),
        ("${a.items[5].output}", "result.items of a has 2 entries, counted from 0, and '5' is none of them", None),
        ("${a.items.first}", "result.items of a has 2 entries", None),
        ("${a.n.x}", "result.n of a is a single value, which has no 'x'", None),
        ("${a.nothing}", "it is null in the result of a", None),
        ("${a.nothing.x}", "result.nothing of a is null, which has no 'x'", None),
        ("${b.result.x}", "refers to a task without a result.", "Results: a, a.b."),
        ("text ${a.metrics.loss}", "result.metrics of a has no 'loss'", "It has eval.loss."),
    ],
)
def test_a_reference_without_a_value_says_what_is_there_instead(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(ReferenceFault) as caught:
        resolve({"data": {"items": ["good", text]}}, NAMES)
    assert caught.value.message.startswith("spec.data.items.1: ${")
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_fault_14_a_file_of_a_result_is_named_by_the_result() -> None:
    export = {"path": "artifacts/pairs.jsonl", "url": "http://server/pairs.jsonl"}
    envelope = {**ENVELOPE, "result": {"jsonl_export": export}}
    spec = {"data": {"jsonl": {"path": "${make.result.jsonl_export.path}", "url": "${make.jsonl_export.url}"}}}
    assert resolve(spec, {"make": envelope}) == {"data": {"jsonl": export}}


def test_entries_of_a_list_that_name_a_value() -> None:
    items = ["plain", {"node": "a", "path": "items[0].output"}, {"node": "a", "path": "result.items.1"}]
    found = resolve({"data": {"type": "list", "items": items}}, NAMES)
    assert found["data"]["items"] == ["plain", "one", '{"output":"two","score":1}']
    items = ["${a.items.output}", {"node": "a", "path": "items.score"}, "${a.n}", "n ${a.n}"]
    assert resolve({"data": {"items": items}}, NAMES)["data"]["items"] == ["one", "two", "0.5", "1", "7", "n 7"]
    with pytest.raises(ReferenceFault, match=r"^spec.data.items.1: a.items\[7\] has no value"):
        resolve({"data": {"items": ["x", {"node": "a", "path": "items[7]"}]}}, NAMES)


CHAT = [{"role": "user", "content": "${x} and 5 ${secret:TOKEN}"}]
KEPT: dict[str, Any] = {
    "number": 7, "yes": True, "pair": {"a": [1, "two"]}, "list": [1, "two", {"b": 2.5}], "chat": CHAT,
    "chats": [CHAT, CHAT], "named": {"node": "a", "path": "n"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "key", "items"),
    [
        ("echo", "number", [7]),
        ("echo", "yes", [True]),
        ("echo", "pair", [{"a": [1, "two"]}]),
        ("echo", "list", [1, "two", {"b": 2.5}]),
        ("echo", "named", ['{"node":"a","path":"n"}']),
        ("inference", "number", ["7"]),
        ("inference", "pair", ['{"a":[1,"two"]}']),
        ("inference", "list", ["1", "two", '{"b":2.5}']),
        ("inference", "chat", [CHAT]),
        ("inference", "chats", [CHAT, CHAT]),
        ("embedding", "number", ["7"]),
        ("embedding", "chat", ['{"role":"user","content":"${x} and 5 ${secret:TOKEN}"}']),
        ("rag", "yes", ["true"]),
    ],
)
def test_items_keep_their_type_where_the_kind_takes_it(kind: str, key: str, items: list[Any]) -> None:
    for item in (f"${{a.{key}}}", {"node": "a", "path": key}):
        spec = {"taskType": kind, "data": {"type": "list", "items": [item]}}
        found = resolve(spec, {"a": {**ENVELOPE, "result": KEPT}})
        assert secrets_of(found) == (), "a result names no secret"
        assert fill_secrets(found, {}.get)["data"]["items"] == items


def test_a_result_cannot_name_a_secret() -> None:
    evil = {"a": {**ENVELOPE, "result": {"text": "${secret:TOKEN}", "list": [{"x": "$${secret:TOKEN}"}]}}}
    spec = {"whole": "${a.text}", "inside": "say ${a.text}", "deep": "${a.list}", "own": "${secret:TOKEN}"}
    spec["data"] = {"type": "list", "items": [{"node": "a", "path": "text"}]}  # type: ignore[assignment]
    resolved = resolve(spec, evil)
    assert secrets_of(resolved) == ("TOKEN",)
    assert fill_secrets(resolved, {"TOKEN": "s3cret"}.get) == {
        "whole": "${secret:TOKEN}",
        "inside": "say ${secret:TOKEN}",
        "deep": [{"x": "$${secret:TOKEN}"}],
        "own": "s3cret",
        "data": {"type": "list", "items": ["${secret:TOKEN}"]},
    }


def test_secrets_are_listed_and_filled_in() -> None:
    spec = {"url": "http://${secret:USER}:${secret:PASS}@host", "n": 3, "items": ["$${secret:NO}", "${secret:USER}"]}
    assert secrets_of(spec) == ("PASS", "USER")
    filled = fill_secrets(spec, {"USER": "u", "PASS": "${secret:USER}"}.get)
    assert filled == {"url": "http://u:${secret:USER}@host", "n": 3, "items": ["${secret:NO}", "u"]}
    with pytest.raises(InputError, match="needs the secret PASS, which this worker does not have") as caught:
        fill_secrets(spec, {"USER": "u"}.get)
    assert caught.value.hint == "Set TUNEFLEET_SECRET_PASS on the worker."


def test_a_result_cannot_bring_what_would_be_resolved_again() -> None:
    evil = {"a": {**ENVELOPE, "result": {"entry": {"node": "a", "path": "n"}, "data": {"type": "graph_template"}}}}
    assert resolve({"data": {"items": ["${a.entry}"]}}, evil)["data"]["items"] == ['{"node":"a","path":"n"}']
    with pytest.raises(ReferenceFault, match=r"^spec.data: a result cannot contain a graph_template"):
        resolve({"data": "${a.data}"}, evil)


TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(alphabet="ab${}.:secrt", max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_leaves=8,
)


@given(TREES)
def test_any_result_comes_through_resolution_and_secrets_unchanged(result: Any) -> None:
    if result is None:
        return
    resolved = resolve({"v": "${a.result.value}"}, {"a": {"task_id": "t", "result": {"value": result}}})
    assert fill_secrets(resolved["v"], lambda name: "leaked") == result


@given(st.text(alphabet="ab${}.:[]0secrt-_ ", max_size=40))
def test_every_text_comes_apart_and_together(text: str) -> None:
    together = "".join(
        piece if isinstance(piece, str) else "$${" if isinstance(piece, Escape) else _text(piece)
        for piece in pieces(text, ("a",))
    )
    assert together.replace(" ", "") == text.replace(" ", "")
    assert all(isinstance(piece, str | Escape) for piece in pieces(escape(text)))


def _text(piece: Reference | Secret | Stray) -> str:
    return f"${{secret:{piece.name}}}" if isinstance(piece, Secret) else piece.text


def test_a_spec_is_not_changed_by_resolving_it() -> None:
    spec = {"data": {"items": ["${a.n}"]}, "list": [1, "${a.items}"]}
    before = repr(spec)
    found = resolve(spec, NAMES)
    found["list"][1].append("mine")
    assert repr(spec) == before
    assert len(RESULT["items"]) == 2  # type: ignore[arg-type]


def test_a_key_that_only_the_parts_of_a_spread_task_have_is_pointed_to() -> None:
    export = {"count": 2, "parts": [{"url": "http://h/1"}, {"url": "http://h/2"}]}
    envelopes = {"all": {"result": {"jsonl_export": export}}}
    with pytest.raises(ReferenceFault) as caught:
        resolve({"data": {"path": "${all.result.jsonl_export.url}"}}, envelopes)
    assert str(caught.value) == (
        "spec.data.path: ${all.result.jsonl_export.url} has no value: result.jsonl_export of all has no 'url'. "
        "Each of its 2 shards has one, such as ${all.result.jsonl_export.parts[0].url}; without `parallel` there is a "
        "single one."
    )
    named = resolve({"data": {"path": "${all.result.jsonl_export.parts[0].url}"}}, envelopes)
    assert named["data"]["path"] == "http://h/1"


@pytest.mark.parametrize(
    ("field", "equals", "runs"),
    [
        ("items.0.output", "one", True),
        ("result.items[0].output", "two", False),
        ("n", 7, True),
        ("n", 7.0, True),
        ("n", "7", False),
        ("ok", True, True),
        ("ok", 1, False),
        ("items[1].score", True, False),
        ('metrics["eval.loss"]', 0.25, True),
        ("metadata.node", "rack-3", True),
        ("items", "one", False),
    ],
)
def test_conditions(field: str, equals: Any, runs: bool) -> None:
    assert (unmet(ConditionSpec(node="a", field=field, equals=equals), ENVELOPE) is None) is runs


def test_a_condition_on_a_value_that_is_not_there_is_no_quiet_no() -> None:
    with pytest.raises(ReferenceFault, match="has no 'itms'") as caught:
        unmet(ConditionSpec(node="a", field="itms.0", equals="x"), ENVELOPE)
    assert caught.value.hint == "Did you mean items?"


@pytest.mark.parametrize(
    ("value", "equals", "said"),
    [
        (None, "timeout", 'a.error is null, not "timeout"'),
        (True, "true", 'a.error is true, not "true"'),
        ({"code": 1}, 1, 'a.error is {"code":1}, not 1'),
        ("x" * 200, "y", f'a.error is "{"x" * 99}…, not "y"'),
    ],
    ids=["null", "boolean", "mapping", "long"],
)
def test_a_condition_that_is_not_met_tells_what_it_found(value: Any, equals: Any, said: str) -> None:
    envelope = {**ENVELOPE, "result": {"error": value}}
    condition = ConditionSpec(node="a", field="error", equals=equals)
    assert unmet(condition, envelope) == f"Its condition is not met: {said}."
