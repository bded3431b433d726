"""`tunefleet campaign dry-run`: offline, and honest about what it could not look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.cli.campaigns import dry_run
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.main import run
from tunefleet.client.campaign_files import named_files
from tunefleet.errors import DataError, ModelError
from tunefleet.spec.documents.campaign_document import CampaignSpec, RunIntervalsSpec

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "campaign"


def outlook(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["campaign", "dry-run", "--config", str(config), "--json"]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["campaigns"]}


def test_what_is_here_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    found = outlook(EXAMPLES / "config.yaml", capsys)["gsm8k"]
    assert found["next"] == "starts cycle 0"
    assert found["facts"]["rows"].startswith("2,000, about 100 for evaluation")
    assert found["facts"]["chunks"] == "4 with about 475 rows each; next: chunk 1 of epoch 0"
    # Where it stands on a server, and what only a worker can see of a model.
    assert [
        text for text in found["unchecked"] if not text.startswith(("state on the server", "model_repo: a worker"))
    ] == []


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ({}, "none: the next run starts immediately"),
        ({"max_days": 2}, "0 to 2 days after each run"),
        ({"min_days": 1, "max_days": 1, "min_hours": 2, "max_hours": 5}, "1 day and 2 to 5 hours after each run"),
        ({"min_hours": 0.5, "max_hours": 0.5}, "0.5 hours after each run"),
    ],
)
def test_an_interval_in_words(interval: dict[str, float], words: str) -> None:
    assert dry_run._interval(RunIntervalsSpec(**interval)) == words


def test_what_is_elsewhere_is_named_as_not_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADIENTS_API_KEY", raising=False)
    found = outlook(EXAMPLES / "example-config.yaml", capsys)
    daily = found["daily-instructions"]
    assert daily["facts"]["provider"] == "local (GRADIENTS_API_KEY is not set)"
    assert any("yahma/alpaca-cleaned" in text for text in daily["unchecked"])
    assert any("model_repo" in text for text in daily["unchecked"])
    assert any("server" in text for text in daily["unchecked"])
    assert found["chats"]["next"] == "nothing (not enabled)"


def test_what_gradients_could_not_go_on_with_is_told_before_anything_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIENTS_API_KEY", "key")
    monkeypatch.delenv("HF_USERNAME", raising=False)
    config = tmp_path / "config.yaml"
    config.write_text((EXAMPLES / "example-config.yaml").read_text().replace("to: none", "private: true"))
    assert run(["campaign", "dry-run", "--config", str(config)]) == ExitCode.INVALID
    said = capsys.readouterr()
    assert "Set TUNEFLEET_HF_USERNAME and HF_TOKEN, or set publish.to: hf://ORG/NAME-{cycle}." in " ".join(
        said.out.split()
    )
    assert "daily-instructions, chats cannot run with these settings" in said.err
    monkeypatch.setenv("HF_USERNAME", "me")
    found = outlook(config, capsys)["daily-instructions"]
    assert found["facts"]["publish"] == "hf://me/daily-instructions-{cycle}"
    assert "public repositories only" in found["doubts"][0]
    assert found["faults"] == []


def test_a_bad_file_is_told_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("one:\n  enabeld: true\ntwo:\n  model_repo: m\n")
    assert run(["campaign", "dry-run", "--config", str(config)]) != 0
    said = capsys.readouterr().err
    assert "did you mean enabled?" in said
    assert "two.datasets" in said


def test_what_is_not_here_is_told_whole_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    rows = "field_instruction: q, field_output: a"
    config.write_text(
        f"one:\n  provider: nobody\n  model_repo: ./gone\n  datasets: [{{path: rows.jsonl, {rows}}}]\n"
        f"two:\n  model_repo: m\n  datasets: [{{path: more.jsonl, {rows}}}]\n"
    )
    assert run(["campaign", "dry-run", "--config", str(config)]) != 0
    said = capsys.readouterr().err
    assert "has 4 errors" in said
    for place in ("yaml:2:13  one.provider", "yaml:3:15  one.model_repo", "yaml:4:21  one.datasets.0.path"):
        assert place in said
    assert "yaml:7:21  two.datasets.0.path" in said
    assert "available: gradients, local" in said


@pytest.mark.parametrize("command", ["dry-run", "run", "start"])
@pytest.mark.parametrize(
    ("text", "place", "said", "hint"),
    [
        (
            "one:\n  model_repo: m\n  datasets:\n    - path: rows.jsonl\n      field_instruction: q\n"
            "      field_output: as\n",
            "yaml:6:21  one.datasets.0.field_output",
            "column 'as' not found in rows.jsonl (columns: q, a)",
            "name an existing column",
        ),
        (
            "one:\n  model_repo: m\n  datasets:\n    - path: builtin:gsm8k\n      field_instruction: questoin\n"
            "      field_output: answer\n",
            "yaml:5:26  one.datasets.0.field_instruction",
            "column 'questoin' not found in train.jsonl (columns: question, answer",
            "did you mean question?",
        ),
        (
            "one:\n  model_repo: org/a/b\n  datasets: [{name: a/b, field_instruction: q, field_output: a}]\n",
            "yaml:2:15  one.model_repo",
            "'org/a/b' has more than one slash: not a valid Hugging Face Hub id",
            "name a model as ORG/NAME, or an existing folder",
        ),
        (
            "one:\n  model_repo: m\n  datasets:\n    - name: builtin:gsm8\n      field_instruction: q\n"
            "      field_output: a\n",
            "yaml:4:13  one.datasets.0.name",
            "is not a built-in dataset: builtin:gsm8",
            "did you mean builtin:gsm8k?",
        ),
    ],
)
def test_columns_and_ids_are_checked_before_anything_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str, place: str, said: str, hint: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "x", "a": "y"}\n')
    config = tmp_path / "config.yaml"
    config.write_text(text)
    assert run(["campaign", command, "--config", str(config)]) == ExitCode.INVALID
    shown = " ".join(capsys.readouterr().err.split())
    for each in (" ".join(place.split()), said, hint):
        assert each in shown


def test_columns_that_only_a_worker_can_read_are_named_as_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").mkdir()
    config = tmp_path / "config.yaml"
    config.write_text("one: {model_repo: m, datasets: [{path: ./rows, field_instruction: q, field_output: a}]}")
    found = outlook(config, capsys)["one"]
    assert "datasets.0: a worker checks the columns of ./rows" in found["unchecked"]


def spec(**more: Any) -> CampaignSpec:
    dataset = {"path": "rows.jsonl", "field_instruction": "q", "field_output": "a"}
    return CampaignSpec.model_validate({"model_repo": "org/model", "datasets": [dataset], **more})


def test_files_are_found_beside_the_file_of_campaigns(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "x", "a": "y"}\n')
    (tmp_path / "base").mkdir()
    assert list(named_files(spec(), tmp_path)) == [("datasets.0.path", tmp_path / "rows.jsonl", "dataset")]
    assert ("model_repo", tmp_path / "base", "model") in list(named_files(spec(model_repo="./base"), tmp_path))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"datasets\.0\.path: rows\.jsonl not found"):
        list(named_files(spec(), tmp_path))
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(ModelError, match="no folder"):
        list(named_files(spec(model_repo="./gone"), tmp_path))
