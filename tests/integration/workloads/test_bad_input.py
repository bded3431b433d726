"""Each mistake of a user: one clear sentence that names the thing and the way out, and nothing half-done."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.libraries import required

required("torch")
pytestmark = pytest.mark.torch
NO_COLUMNS = {"prompt_column": None, "response_column": None}


def file(tmp_path: Path, content: str) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    return str(path)


def refused(ended: Any, *parts: str, kind: str = "input") -> None:
    assert ended.code == (2 if kind == "input" else 1)
    status = ended.status
    assert (status.state, status.error_kind) == ("failed", kind)
    for part in parts:
        assert part in str(status.error)
    assert "\n" not in str(status.error).strip()
    assert not ended.folder.responses_json.exists()
    assert not list(ended.folder.root.glob("final_*"))


def test_a_missing_column_lists_those_that_exist(train: Any) -> None:
    refused(train({"data": {"response_column": "solution"}}), "no column 'solution'", "answer, question")


def test_an_empty_dataset(train: Any, tmp_path: Path) -> None:
    refused(train({"data": {"path": file(tmp_path, ""), "eval": None}}), "rows.jsonl", "has no rows")


def test_rows_without_the_field(train: Any, tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "b"}, {"question": "a"}]
    path = file(tmp_path, "\n".join(map(json.dumps, rows)))
    refused(train({"data": {"path": path, "eval": None}}), "Row 2", "rows.jsonl", "no column 'answer'")


def test_a_dataset_that_is_not_there(train: Any) -> None:
    refused(train({"data": {"path": "/nowhere/rows.jsonl", "eval": None}}), "/nowhere/rows.jsonl does not exist")


def test_a_malformed_line(train: Any, tmp_path: Path) -> None:
    path = file(tmp_path, '{"question": "a", "answer": "b"}\n{"question": \n')
    refused(train({"data": {"path": path, "eval": None}}), "Line 2 of rows.jsonl is not valid JSON")


def test_a_model_that_is_nowhere(train: Any) -> None:
    ended = train({"model": {"source": {"identifier": "nobody/no-such-model"}}})
    refused(ended, "Model 'nobody/no-such-model' not found", "HF_HUB_OFFLINE")


def test_a_built_in_model_that_does_not_exist(train: Any) -> None:
    refused(train({"model": {"source": {"identifier": "builtin:gpt"}}}), "builtin:gpt", "builtin:gsm8k-llama-2m")


def test_a_folder_that_is_no_model(train: Any, tmp_path: Path) -> None:
    refused(train({"model": {"source": {"identifier": str(tmp_path)}}}), str(tmp_path), "no config.json")
    (tmp_path / "config.json").write_text("{}")
    refused(train({"model": {"source": {"identifier": str(tmp_path)}}}), str(tmp_path), "cannot be loaded")


def test_a_model_folder_with_broken_weights(train: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for source in train.model.iterdir():
        (folder / source.name).write_bytes(source.read_bytes()[: 1000 if source.suffix == ".safetensors" else None])
    refused(train({"model": {"source": {"identifier": str(folder)}}}), "The model of", "cannot be loaded")


def test_a_hub_that_does_not_answer_is_tried_again(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi, constants

    def down(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", down)
    ended = train({"model": {"source": {"identifier": "nobody/no-such-model"}}})
    refused(ended, "Hub cannot be reached", "HF_HUB_OFFLINE=1", kind="network")


def test_targets_that_match_nothing_list_the_candidates(train: Any) -> None:
    ended = train({"lora": {"target_modules": ["query", "q_proj"]}})
    refused(ended, "'query', which no module of the model matches", "down_proj, gate_proj, k_proj", "all-linear")


def test_the_output_head_is_no_target(train: Any) -> None:
    refused(train({"lora": {"target_modules": ["lm_head"]}}), "output head ('lm_head')", "q_proj")


def test_a_module_to_save_that_does_not_exist(train: Any) -> None:
    refused(train({"lora": {"modules_to_save": ["classifier"]}}), "'classifier', which the model does not have")


def test_a_limit_that_leaves_nothing_to_learn(train: Any) -> None:
    refused(train({"training": {"max_seq_length": 5}}), "No row of builtin:gsm8k (train)", "max_seq_length")


def test_an_adapter_of_another_model(train: Any) -> None:
    adapter = train({"model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}}, "training": {"max_steps": 1}})
    ended = train({"checkpoint": {"load": {"path": str(adapter.folder.root / "final_lora")}}})
    refused(ended, "cannot be loaded onto this model", "same base model")


def test_a_checkpoint_without_the_folder_that_is_named(train: Any, tmp_path: Path) -> None:
    ended = train({"checkpoint": {"load": {"path": str(tmp_path), "subdir": "nothing"}}})
    refused(ended, "has no folder nothing")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"training": {"liger": True}}, "liger-kernel"),
        ({"training": {"fp16": True}}, "fp16"),
        ({"model": {"transformers": {"attn_implementation": "flash_attention_2"}}}, "flash-attn"),
    ],
)
def test_what_this_machine_does_not_have(changes: dict[str, Any], part: str, train: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has it")
    refused(train(changes), part)


def test_an_archive_that_leaves_its_folder(train: Any, tmp_path: Path) -> None:
    import io
    import tarfile

    archive = tmp_path / "rows.tar"
    with tarfile.open(archive, "w") as packed:
        member = tarfile.TarInfo("../escaped.jsonl")
        member.size = 2
        packed.addfile(member, io.BytesIO(b"{}"))
    refused(train({"data": {"path": str(archive), "eval": None}}), "rows.tar", "escaped.jsonl")
    assert not list(tmp_path.rglob("escaped.jsonl"))


def test_a_task_that_trains_nothing(train: Any) -> None:
    ended = train({"taskType": "echo", "lora": None, "training": None, "model": None, "data": None})
    assert ended.code == 2


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("options", [{"save_strategy": "steps", "save_steps": 2}, {"save_strategy": "no"}])
def test_a_full_disk(options: dict[str, Any], train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system of a third of a megabyte neither a checkpoint nor the model fits; the report of it must."""
    # As if somebody else had filled it after the forecast.
    monkeypatch.setattr("tunefleet.workloads.training.run.require_disk", lambda *_, **__: None)
    folder = tmp_path / "job-1"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=384k", "tmpfs", str(folder)], check=True)
    try:
        ended = train({"taskType": "sft", "lora": None, "training": options})
        refused(ended, "The disk is full", str(folder), "save_total_limit", kind="disk")
        assert [path for path in ended.folder.checkpoints_dir.glob("checkpoint-*")] == []
        assert not list(folder.glob(".*"))
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_will_not_suffice_is_told_before_the_training(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunefleet.runtime.disk_check.shutil.disk_usage", lambda _: SimpleNamespace(free=64 << 20))
    ended = train({"training": {"save_strategy": "steps", "save_steps": 1}})
    refused(ended, "The training run needs", "2 kept", "0.06 GiB are free", "save_total_limit", kind="disk")
    assert not list(ended.folder.checkpoints_dir.glob("checkpoint-*"))
    metrics = (ended.folder.journal_dir / f"{ended.launch}.jsonl").read_text()
    assert '"type":"metric"' not in metrics
