"""Merges, held to the contract of executors: killed in the middle, they end as if they had not been."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.fakes import llama_cpp
from tunefleet.executors.merge import MergeExecutor
from tunefleet.testing import JobContract

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

SOURCE = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
NOWHERE = {"source": {"identifier": "./nowhere"}}


def adapter(folder: Path, seed: int) -> Path:
    """Write an adapter of rank 4 on the attention of the built-in model, of random numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    tensors = {
        name.format(layer, side): (draw.standard_normal(shape) * 0.1).astype(np.float32)
        for layer in range(4)
        for side, shape in (("A", (4, 192)), ("B", (192, 4)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    config |= {"base_model_name_or_path": "builtin:gsm8k-llama-2m"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class _Merged(JobContract):
    executor = MergeExecutor
    warm = True

    def same(self, result: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether they are the same but for their times, and for what a launch before had written."""
        told = {"timings", "shards"}
        plain = [{key: value for key, value in each.items() if key not in told} for each in (result, other)]
        files = [[(file["name"], file["digest"]) for file in each.get("shards", ())] for each in (result, other)]
        return super().same(*plain) and files[0] == files[1]


class TestIntoAdapter(_Merged):
    adapters = ({"path": "./a", "weight": 0.75}, {"path": "./b"})
    spec = {"model": {**SOURCE, "adapters": list(adapters)}, "merge": {"into": "adapter", "method": "cat"}}
    bad_spec = {**spec, "model": {**NOWHERE, "adapters": list(adapters)}}

    def inputs_of(self, tmp_path: Path) -> Mapping[str, str]:
        folders = [adapter(tmp_path / name, seed) for seed, name in enumerate(("a", "b"))]
        return {f"model.adapters.{at}.path": str(folder) for at, folder in enumerate(folders)}

    def time_to_kill(self, folder: Path) -> bool:
        """Once the adapter is there and nothing is proved."""
        return (folder / "final_lora").is_dir()


class TestGguf(_Merged):
    """With a double of llama.cpp's converter."""

    spec = {"model": SOURCE, "merge": {"gguf": {"type": "f16"}, "verify": False}}
    bad_spec = {**spec, "model": NOWHERE}

    @pytest.fixture(autouse=True)
    def _converter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = llama_cpp.make(tmp_path / "llama.cpp", takes_s=1.0)
        monkeypatch.setattr(type(self), "environment", {"TUNEFLEET_LLAMA_CPP": str(folder)})

    def time_to_kill(self, folder: Path) -> bool:
        """While half of the file lies there."""
        return any(path.stat().st_size for path in folder.glob(".model-f16.gguf.*"))

    def same(self, result: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether the files are the same, too, whole, and with nothing of half ones beside them."""
        for each in (result, other):
            made = Path(each["gguf"]["path"])
            assert made.read_bytes() == b"GGUFsmollmf16"
            assert not list(made.parent.glob(".*.gguf.*"))
        return super().same(result, other)
