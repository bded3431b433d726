"""A model of some hundred megabytes: how much memory a merge takes, and a kill in the middle of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global CONFIG, LlamaConfig, LlamaForCausalLM, LoraConfig, load_file, save_file, torch
    pytest.importorskip("peft")

    import torch
    from peft import LoraConfig
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    CONFIG = LlamaConfig(
        vocab_size=4096, hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, tie_word_embeddings=True,
    )  # fmt: skip


pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel tells no process's memory"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

FILES = 4


def _big(folder: Path) -> Path:
    """Write a Llama in bf16, in four files of which each has two layers; its weights are zero."""
    folder.mkdir()
    CONFIG.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in LlamaForCausalLM(CONFIG).named_parameters()}
    place: dict[str, str] = {}
    for number in range(FILES):
        mine = {f"model.layers.{layer}." for layer in (2 * number, 2 * number + 1)}
        tensors = {
            name: torch.zeros(shape, dtype=torch.bfloat16)
            for name, shape in shapes.items()
            if any(name.startswith(each) for each in mine) or (number == 0 and not name.startswith("model.layers."))
        }
        file = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        place |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return folder


def _adapter(folder: Path) -> Path:
    """Write an adapter for all of its layers as PEFT does; the model itself would take a gigabyte to make one."""
    LoraConfig(r=8, lora_alpha=16, target_modules=["down_proj", "q_proj"], task_type="CAUSAL_LM").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    tensors = {}
    for layer in range(CONFIG.num_hidden_layers):
        for name, inner in (("mlp.down_proj", CONFIG.intermediate_size), ("self_attn.q_proj", CONFIG.hidden_size)):
            before = f"base_model.model.model.layers.{layer}.{name}.lora_"
            tensors[f"{before}A.weight"] = torch.randn(8, inner)
            tensors[f"{before}B.weight"] = torch.randn(CONFIG.hidden_size, 8)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def _start(folder: Path, base: Path, adapter: Path, launch: str) -> subprocess.Popen[bytes]:
    spec: dict[str, Any] = {"taskType": "merge", "merge": {"verify": False}}
    spec["model"] = {"source": {"identifier": str(base)}, "adapters": [{"path": str(adapter)}]}
    job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": launch, "kind": "merge", "name": "t"}
    job |= {"program": "tunefleet.workloads.merging:main", "spec": spec}
    job |= {"inputs": {"model.adapters.0.path": str(adapter)}}
    (folder / "job.json").write_text(json.dumps(job))
    with (folder / "said.log").open("ab") as log:
        command = [sys.executable, "-m", "tunefleet.workloads.entrypoint", str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=log)


def _anonymous_bytes(pid: int) -> int:
    """Return the memory that is the process's own: no file stands behind it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def _has_newer(folder: Path, at: float) -> bool:
    """Whether something was written into a folder after a moment."""
    try:
        return any(path.stat().st_mtime > at for path in folder.iterdir())
    except FileNotFoundError:
        return True  # it is over, and was tidied up


def _watch(process: subprocess.Popen[bytes], look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while process.poll() is None and not look():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.proof
def test_memory_stays_below_the_largest_file_and_a_killed_merge_keeps_what_was_whole(tmp_path: Path) -> None:
    base = _big(tmp_path / "base")
    adapter = _adapter(tmp_path / "adapter")
    largest = max(path.stat().st_size for path in base.glob("*.safetensors"))
    assert largest > 60 << 20
    folder = tmp_path / "job"
    folder.mkdir()
    work = folder / ".merge"
    first = _start(folder, base, adapter, "one")
    _watch(first, lambda: bool(list(work.glob("*.json"))))
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (folder / "responses.json").exists(), (folder / "said.log").read_text()
    kept = {path.name.removesuffix(".json") for path in work.glob("*.json")}
    assert kept

    before, peak, started_at = 0, 0, time.time()
    second = _start(folder, base, adapter, "two")

    def look() -> bool:
        nonlocal before, peak
        now = _anonymous_bytes(second.pid)
        began = _has_newer(work, started_at)
        before, peak = (before, max(peak, now)) if began else (now, peak)
        return False

    _watch(second, look)
    assert second.returncode == 0, (folder / "said.log").read_text()
    assert peak > 0
    assert peak - before < 2 * largest, "the bound"
    result = json.loads((folder / "responses.json").read_bytes())
    assert {each["name"] for each in result["shards"] if each["kept"]} == kept
    name = "model.layers.7.mlp.down_proj"
    made = load_file(folder / "final_model" / f"model-{FILES:05}-of-{FILES:05}.safetensors")[f"{name}.weight"]
    factors = load_file(adapter / "adapter_model.safetensors")
    b, a = (factors[f"base_model.model.{name}.lora_{part}.weight"].float() for part in "BA")
    assert torch.equal(made, (b @ a * 2).to(torch.bfloat16))
    print(f"largest file {largest >> 20} MiB, merge took {(peak - before) >> 20} MiB of anonymous memory")
