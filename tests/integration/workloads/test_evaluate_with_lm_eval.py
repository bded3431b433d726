"""Tasks of lm-eval in its own environment: with and without an adapter, and what is refused. One process for all."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.analysis.evaluation.comparison import compare
from tunefleet.runtime import envs
from tunefleet.schemas.job_folder import JobFolder, JobStatus


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, LoraConfig, get_peft_model
    pytest.importorskip("peft")

    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM


pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # PEFT asks Transformers by a name that will go
]

RUN = """
import sys
from pathlib import Path
from tunefleet.trainer_control import session
from tunefleet.workloads import entrypoint
for folder in sys.argv[1:]:
    session._sessions.clear()
    entrypoint.main(Path(folder))
"""
ROWS = """
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
metadata: {version: 1.0}
"""
TASKS = {
    "rows": ROWS,
    "parity.yaml": """
include: rows
task: parity
output_type: multiple_choice
doc_to_text: "{{question}} The answer is"
doc_to_choice: [" even", " odd"]
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "text.yaml": """
include: rows
task: text
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "questions.jsonl": "".join(
        json.dumps({"question": f"Is {number} even or odd?", "label": number % 2}) + "\n" for number in range(8)
    ),
}
CODE = {"evil.py": "open('ran', 'w')\ntext = str\n", "questions.jsonl": TASKS["questions.jsonl"], "rows": ROWS}


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def job(root: Path, model: Path, tasks: Path, names: list[str], adapter: Path | None = None) -> JobFolder:
    """Write a job folder."""
    root.mkdir()
    source: dict[str, Any] = {"source": {"identifier": str(model)}}
    inputs = {"evaluations.0.include_path": str(tasks)}
    if adapter is not None:
        source["adapters"] = [{"path": str(adapter)}]
        inputs["model.adapters.0"] = str(adapter)
    harness = {"type": "lm_eval", "tasks": names, "include_path": "./tasks", "batch_size": 4}
    spec = {"taskType": "evaluate", "enforce_cpu": True, "model": source, "evaluations": [harness]}
    about = {"job_id": "j", "task_id": root.name, "attempt": 1, "launch": "l", "kind": "evaluate", "name": "t"}
    folder = JobFolder(root)
    folder.job_json.write_text(
        json.dumps(about | {"program": "tunefleet.workloads.evaluation:main", "spec": spec, "inputs": inputs})
    )
    return folder


@pytest.mark.proof
def test_a_model_its_adapter_and_what_would_run_code(
    tiny_model: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    reason = envs.reason("lm-eval")
    if reason is not None:
        missing(reason)
    adapter = tmp_path / "adapter"
    config = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config).save_pretrained(adapter)
    own = written(tmp_path / "own", TASKS)
    included = written(
        tmp_path / "included",
        CODE | {"a.yaml": "include: [rows, b.txt]\ntask: a\n", "b.txt": "doc_to_text: !function evil.text\n"},
    )
    measured = written(
        tmp_path / "measured", CODE | {"a.yaml": "include: rows\ntask: a\nmetric_list: [{metric: evil}]"}
    )
    folders = {
        "base": job(tmp_path / "j-base", tiny_model, own, ["parity", "text"]),
        "tuned": job(tmp_path / "j-tuned", tiny_model, own, ["parity", "text"], adapter),
        "included": job(tmp_path / "j-included", tiny_model, included, ["a"]),
        "measured": job(tmp_path / "j-measured", tiny_model, measured, ["a"]),
    }
    command = [envs.at("lm-eval").python, "-P", "-c", RUN, *(str(folder.root) for folder in folders.values())]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    log = done.stdout + done.stderr
    ends = {name: JobStatus.model_validate_json(folder.status_json.read_bytes()) for name, folder in folders.items()}
    assert {name: end.state for name, end in ends.items()} == {
        "base": "completed", "tuned": "completed", "included": "failed", "measured": "failed",
    }, log  # fmt: skip

    # What cannot be measured is said, and nothing of it has run.
    said = {name: str(end.error) for name, end in ends.items()}
    assert "The lm-eval task b.txt runs code: it has !function." in said["included"]
    assert "The lm-eval task a.yaml runs code: its metric evil is not built into lm-eval." in said["measured"]
    assert not list(tmp_path.rglob("ran"))
    assert "%|" not in log, "bars are for terminals"
    assert "it/s" not in log
    assert "fatal:" not in log, "git is not asked about a folder that is none of its own"

    # The adapter is on the model, and its numbers are compared with the model's item by item.
    found = {name: json.loads(folders[name].responses_json.read_bytes()) for name in ("base", "tuned")}
    metrics = found["base"]["metrics"]
    assert (metrics["parity_acc"]["n"], metrics["parity_acc"]["method"]) == (8, "Wilson, 8 items")
    for name in ("text_word_perplexity", "text_bits_per_byte"):
        assert metrics[name]["low"] < metrics[name]["value"] < metrics[name]["high"]
        assert metrics[name]["value"] != found["tuned"]["metrics"][name]["value"]
    rows = compare(found, lambda task, file: folders[task].root / file)
    changes = {row.metric: row.differences[1] for row in rows}
    words, bits = changes["text_word_perplexity"], changes["text_bits_per_byte"]
    assert words is not None
    assert bits is not None
    both = [found[name]["metrics"] for name in ("base", "tuned")]
    assert words.factor
    assert words.value == pytest.approx(
        both[1]["text_word_perplexity"]["value"] / both[0]["text_word_perplexity"]["value"]
    )
    assert bits.value == pytest.approx(both[1]["text_bits_per_byte"]["value"] - both[0]["text_bits_per_byte"]["value"])
    assert words.low is not None
    assert math.log(words.low) < math.log(words.value)
