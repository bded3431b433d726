from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.workloads import assets


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global main
    pytest.importorskip("torch")

    from tunefleet.workloads.data.preview import main


pytestmark = pytest.mark.torch
Show = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    def run(document: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        path = tmp_path / "task.yaml"
        path.write_text(document)
        code = main([str(path), "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def document(data: str, kind: str = "lora_sft", model: str = "builtin:gsm8k-llama-2m", more: str = "") -> str:
    return (
        f"apiVersion: tunefleet/v1\nkind: Task\nmetadata: {{name: t}}\nspec:\n  taskType: {kind}\n"
        f"  model: {{source: {{identifier: {model}}}}}\n  data: {data}\n{more}"
    )


def test_rows_are_shown_with_what_is_learnt(show: Show, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "response": "2"}, {"prompt": "2+2=", "response": "4" * 40}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    limit = "  training: {max_seq_length: 16}\n"
    code, shown = show(document('{path: ./rows.jsonl, separator: ""}', more=limit))
    assert code == 0
    first, second = shown["rows"]
    assert [(piece["text"], piece["trained"]) for piece in first["pieces"]] == [("1+1=", False), ("2<|end|>", True)]
    assert [piece["cut"] for piece in second["pieces"]] == [False, False, True]
    assert (first["tokens"], first["trained_tokens"]) == (6, 2)
    assert shown["truncated_share"] == 0.5
    assert shown["max_seq_length"] == 16
    assert sum(shown["histogram"]["counts"]) == shown["measured_rows"] == 2
    assert (shown["shape"], shown["columns"]) == ("pair", ["prompt", "response"])


def test_the_example_is_shown(show: Show) -> None:
    code, shown = show(assets.example("lora_sft").read_text(), "--rows", "2")
    assert code == 0
    assert len(shown["rows"]) == 2
    assert (shown["total_rows"], shown["held_out_rows"]) == (4000, 200)
    assert shown["nothing_to_learn_share"] == 0
    assert 0.5 < shown["trained_share"] < 0.8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: tunefleet/v1\nspec: {taskType: sft}\n", "error"),
        (document("{path: ./absent.jsonl}"), "absent.jsonl does not exist"),
        (document("{path: 'builtin:gsm8k', text_field: body}"), "no column 'body'"),
        (document("{path: 'builtin:gsm8k', text_field: answer}", model="./absent"), "absent"),
        (
            "apiVersion: tunefleet/v1\nkind: T\nmetadata: {name: t}\nspec: {taskType: echo}\n",
            "shows supervised training",
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence(show: Show, text: str, message: str) -> None:
    code, shown = show(text)
    assert code == 2
    assert message in shown["error"]


def test_data_of_the_server_must_be_on_this_machine(show: Show, tmp_path: Path) -> None:
    text = document("{artifact: rows, prompt_column: q, response_column: a}")
    code, shown = show(text)
    assert code == 2
    assert "a preview needs it on this machine" in shown["error"]
    assert "tunefleet artifacts get rows" in shown["hint"]
    (tmp_path / "fetched.jsonl").write_text('{"q": "1+1=", "a": "2"}\n')
    code, shown = show(text, "--input", f"data.artifact={tmp_path / 'fetched.jsonl'}")
    assert code == 0
    assert shown["total_rows"] == 1


def test_a_document_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml cannot be read" in json.loads(capsys.readouterr().out)["error"]
