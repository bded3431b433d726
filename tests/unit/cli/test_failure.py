from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from tunefleet.cli import error_display
from tunefleet.cli.main import run
from tunefleet.errors import Fault, MachineError, NotFoundError, SpecError

DOCUMENT = """apiVersion: tunefleet/v1
kind: Training
metadata: {name: x}
spec:
  taskType: lora_sft
  model: {source: {identifier: builtin:gsm8k-llama-2m}}
  data: {path: builtin:gsm8k}
  training:
    learning_rte: 1e-4
    batch_size: none
"""


def test_a_sentence_and_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_display.report(NotFoundError("Run x not found.", hint="`tunefleet ls` lists them.")) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "Error: Run x not found.\n       `tunefleet ls` lists them.\n"


def test_a_fault_shows_its_line_with_a_caret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(DOCUMENT)
    assert run(["validate", str(file)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("sft.yaml has 2 errors.")
    place = next(index for index, line in enumerate(lines) if ":9:5" in line)
    assert lines[place + 1] == "    9 │     learning_rte: 1e-4"
    assert lines[place + 2] == "      │     ^"
    assert "learning_rate" in lines[place + 3] + lines[place + 4]


def test_a_try_shows_the_lines_of_faults_as_validate_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(
        "apiVersion: tunefleet/v1\nmetadata: {name: x}\nspec:\n  taskType: data\n"
        "  sources: [{path: builtin:gsm8k}]\n  steps: [{filtre: {column: answer}}]\n"
    )
    assert run(["data", "try", str(file)]) == 3
    assert "    6 │   steps: [{filtre: {column: answer}}]" in capsys.readouterr().err


@pytest.mark.parametrize("at", [0, 30, 100, 199])
def test_of_a_line_that_is_too_long_the_part_with_the_fault_is_shown(at: int) -> None:
    line = f"{'.' * at}!{'.' * (199 - at)}"
    shown, now = error_display._around(line, at, 72)
    assert len(shown) == 72
    assert shown[now] == "!"
    assert shown.startswith("…") == (at > 36)
    assert shown.endswith("…") == (at < 199 - 36)


def test_validate_prints_json_and_knows_a_good_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(DOCUMENT)
    assert run(["validate", str(file), "--json"]) == 3
    reply = json.loads(capsys.readouterr().out)
    assert (reply["ok"], len(reply["faults"])) == (False, 2)
    file.write_text(DOCUMENT.replace("rte", "rate").replace("none", "2").replace("builtin:gsm8k}", "./rows.jsonl}"))
    assert run(["validate", str(file)]) == 3
    assert "not found at" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").touch()
    assert run(["validate", str(file)]) == 3
    assert "rows.jsonl has no rows" in capsys.readouterr().err
    assert run(["validate", str(file), "--json"]) == 3
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["path"], fault["message"]) == ("spec.data.path", "rows.jsonl has no rows")
    assert (fault["line"], fault["column"]) == (7, 16)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    assert run(["validate", str(file)]) == 0
    assert "Uploads: " in capsys.readouterr().out
    assert run(["validate", str(file), "--json", "--set", "training.batch_size=4"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert run(["validate", str(tmp_path / "none.yaml")]) == 3
    assert run(["validate", str(tmp_path)]) == 3
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert run(["validate", str(tmp_path / "binary")]) == 3


def test_faults_without_a_place_are_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    error_display.report(SpecError([Fault("spec.x", "is wrong", hint="write y")], filename="gone.yaml"))
    assert "gone.yaml  spec.x\n      is wrong\n      write y" in capsys.readouterr().err


def test_a_bug_asks_for_a_report_and_debug_shows_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error_display.report(ZeroDivisionError("division by zero")) == 70
    said = capsys.readouterr().err
    assert "TUNEFLEET_DEBUG=1" in said
    assert "Traceback" not in said
    monkeypatch.setenv("TUNEFLEET_DEBUG", "1")
    with pytest.raises(MachineError) as caught:
        raise MachineError("No room.")
    assert error_display.report(caught.value) == 8
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("TUNEFLEET_DEBUG", "perhaps")
    assert error_display.report(TimeoutError("late")) == 10
    assert error_display.report(PermissionError("no")) == 8


def test_json_errors_have_faults(capsys: pytest.CaptureFixture[str]) -> None:
    error_display.report(SpecError([Fault("spec.x", "is wrong", 3, 4)]), as_json=True)
    said = json.loads(capsys.readouterr().err)
    assert (said["error"], said["exit_code"], said["faults"][0]["line"]) == ("spec_invalid", 3, 3)
    error_display.report(ValueError("odd"), as_json=True)
    assert json.loads(capsys.readouterr().err)["error"] == "ValueError"


def test_a_command_of_another_group_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["control", "resume", "my-run"]) == 2
    assert "Use `tunefleet run --resume JOB`." in capsys.readouterr().err


def test_a_file_that_several_places_name_is_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    stage = "{taskType: sft, model: {source: {identifier: builtin:gsm8k-llama-2m}}, data: {path: ./rows.jsonl}}"
    file = tmp_path / "flow.yaml"
    file.write_text(
        "apiVersion: tunefleet/v1\nkind: Workflow\nmetadata: {name: x}\nspec:\n  stages:\n"
        f"    - {{name: a, spec: {stage}}}\n    - {{name: b, spec: {stage}}}\n"
    )
    assert run(["validate", str(file)]) == 0
    assert capsys.readouterr().out.count("rows.jsonl") == 1


def test_a_value_that_no_request_may_have_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("many")
    assert error_display.report(caught.value) == 3
    assert "Error: Invalid value: it must be an integer, not 'many'.\n" in capsys.readouterr().err
