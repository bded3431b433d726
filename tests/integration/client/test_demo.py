"""`tunefleet demo` as a newcomer runs it, with fewer steps: real server, real worker, real training."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import yaml

from tunefleet.cli.local_cluster import demo
from tunefleet.cli.main import run
from tunefleet.workloads import assets

pytestmark = [pytest.mark.proof, pytest.mark.torch]


@pytest.fixture
def quick_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped document with as little work as shows anything."""
    document = yaml.safe_load(assets.example("lora_sft").read_text())
    document["spec"]["training"] |= {"max_steps": 2, "batch_size": 2, "save_steps": 2, "logging_steps": 1}
    document["spec"]["data"]["max_samples"] = 16
    document["spec"]["data"]["eval"]["max_samples"] = 4
    document["spec"]["evaluate"] = {"answers": 1, "max_new_tokens": 4, "exact_match": {"rows": 4}}
    file = tmp_path / "quick.yaml"
    file.write_text(yaml.safe_dump(document))
    monkeypatch.setattr(demo.assets, "example", lambda name: file)
    monkeypatch.setenv("TUNEFLEET_WARM_START", "false")
    return file


def left_running(data: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(data) in words:
            found.append(words)
    return found


@pytest.mark.timeout(300)
@pytest.mark.story
def test_the_demo_ends_with_an_adapter_and_leaves_nothing_running(
    quick_example: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    assert run(["demo", "--data", str(data), "--out", str(out), "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert "Exact match 0.0% → 0.0% on 4 sentences" in said
    assert "nats per token" in said
    assert "sentence  " in said
    assert "before" in said
    assert "PeftModel.from_pretrained(base" in said
    assert "Nothing is left running." in said
    assert (out / "adapter" / "adapter_model.safetensors").exists()
    assert not (home / "client.json").exists()
    assert left_running(data) == []


@pytest.mark.timeout(300)
def test_a_demo_that_fails_says_why(
    quick_example: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(quick_example.read_text())
    document["spec"]["model"]["source"]["identifier"] = "example/no-such-model"
    quick_example.write_text(yaml.safe_dump(document))
    data = tmp_path / "data"
    assert run(["demo", "--data", str(data), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "no-such-model" in said
    assert "failed" in said
    assert left_running(data) == []
