from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
DOCUMENT = """apiVersion: tunefleet/v1
kind: SFTTask
metadata: {name: t}
spec:
  taskType: sft
  model: {source: {identifier: builtin:gsm8k-llama-2m}}
  data: {path: ./rows.jsonl, separator: ""}
"""


def test_the_preview_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1=", "response": "2"}))
    (tmp_path / "task.yaml").write_text(DOCUMENT)
    command = [sys.executable, "-X", "importtime", "-m", "tunefleet.workloads.data", str(tmp_path / "task.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pieces = json.loads(done.stdout)["rows"][0]["pieces"]
    assert [(piece["text"], piece["trained"]) for piece in pieces] == [("1+1=", False), ("2<|end|>", True)]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "transformers" in imported
    assert not any(name == "torch" or name.startswith("torch.") for name in imported)
