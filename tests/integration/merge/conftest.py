"""Merges in this process, of models so small that one takes a second; and the jobs of a worker, as processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.ended import EndedJob
from tests.integration.merge.hubs import Served, asked
from tests.libraries import required
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import session
from tunefleet.workloads import assets, entrypoint

if TYPE_CHECKING:
    import torch

required("torch", "peft")

BUILTIN = "builtin:gsm8k-llama-2m"


@dataclass(frozen=True)
class Ended(EndedJob):
    """A merge that has come to an end."""

    @property
    def product(self) -> Path:
        (found,) = (path for path in self.folder.root.glob("final_*") if path.is_dir())
        return found

    def events(self) -> list[str]:
        return [record["name"] for record in self.records("event")]


Merge = Callable[..., Ended]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """A double of the Hub, which this process asks."""
    with asked(monkeypatch, tmp_path / "cache") as made:
        yield made


@pytest.fixture
def merge(tmp_path: Path) -> Merge:
    """Run a merge: base, adapters (folders, or mappings with more), then keys of the spec's `merge` block."""
    numbers = itertools.count(1)

    def go(
        base: str | Path, *adapters: Any, again: Ended | None = None, load: Path | None = None, **options: Any
    ) -> Ended:
        number = next(numbers)
        folder = again.folder if again else JobFolder(tmp_path / f"job-{number}")
        folder.root.mkdir(exist_ok=True)
        given = [each if isinstance(each, dict) else {"path": str(each)} for each in adapters]
        inputs = {f"model.adapters.{at}.path": each["path"] for at, each in enumerate(given)} | options.pop(
            "inputs", {}
        )
        inputs = {name: path for name, path in inputs.items() if path is not None}
        spec: dict[str, Any] = {"taskType": "merge", "merge": options}
        spec["model"] = {"source": {"identifier": str(base)}, "adapters": given}
        if load is not None:
            spec["checkpoint"] = {"load": {"path": str(load)}}
            inputs["checkpoint.load.path"] = str(load)
        launch = f"launch-{number}"
        # Each launch is a process of its own; here it is the same one, so it must forget the launch before.
        session._sessions.clear()
        job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": launch, "kind": "merge", "name": "t"}
        job |= {"program": "tunefleet.workloads.merging:main", "spec": spec, "inputs": inputs}
        folder.job_json.write_text(json.dumps(job))
        return Ended(entrypoint.main(folder.root), folder, launch)

    return go


def llama(folder: Path, *, tied: bool = True, dtype: torch.dtype | None = None, seed: int = 0, **more: Any) -> Path:
    """Write a Llama of 2 layers and hidden size 32, without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = LlamaConfig(**{**sizes, **heads, "tie_word_embeddings": tied, **more})
    saving = {"max_shard_size": more.pop("max_shard_size")} if "max_shard_size" in more else {}
    LlamaForCausalLM(config).to(dtype or torch.float32).save_pretrained(folder, **saving)
    return folder


def gpt2(folder: Path) -> Path:
    """Write a GPT-2 of 2 layers: its layers are Conv1D, its embeddings tied."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=96, n_positions=64, bos_token_id=0, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def lora(base: str | Path, folder: Path, *, seed: int = 1, rows: int | None = None, **config: Any) -> Path:
    """Write an adapter whose every trainable tensor is random, as if it had been trained."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    place = assets.locate(str(base), "model") if str(base).startswith("builtin:") else base
    model = AutoModelForCausalLM.from_pretrained(str(place), dtype=torch.float32)
    if rows is not None:
        model.resize_token_embeddings(rows, mean_resizing=False)
    wanted: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    tuned = get_peft_model(model, LoraConfig(**{**wanted, **config}))
    with torch.no_grad():
        for parameter in (each for each in tuned.parameters() if each.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    tuned.save_pretrained(str(folder), save_embedding_layers=True if rows is not None else "auto")
    return folder
