"""GGUF files in the environment `gguf`: converted, quantized, and run by llama.cpp with the model's own answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.merge.conftest import BUILTIN, Merge, lora
from tests.libraries import required
from tests.real_model import smollm2
from tunefleet.runtime import envs
from tunefleet.spec.tasks.merge_task import GgufSpec

required("peft")
pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Source, gguf, gguf_check
    from tunefleet.workloads.common.base_model import Source
    from tunefleet.workloads.merging import gguf, gguf_check


@pytest.fixture(autouse=True)
def environment(missing: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """No llama.cpp but that of the environment."""
    if why := envs.reason("gguf"):
        missing(why)
    monkeypatch.delenv("TUNEFLEET_LLAMA_CPP", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.mark.parametrize(
    ("kind", "tuned", "agreeing", "fallbacks"),
    [("f16", True, 0.9, 0), ("q8_0", False, 0.9, 0), ("q4_k_m", False, 0.3, 24)],
)
def test_the_built_in_model_is_converted_and_answers_as_before(
    merge: Merge, tmp_path: Path, kind: str, tuned: bool, agreeing: float, fallbacks: int
) -> None:
    adapters = [lora(BUILTIN, tmp_path / "adapter")] if tuned else []
    ended = merge(BUILTIN, *adapters, gguf={"type": kind})
    assert ended.code == 0, ended.status.error
    made = ended.result["gguf"]
    checked = made["check"]
    assert (made["fallback_tensors"], checked["same_tokenization"]) == (fallbacks, True)
    assert checked["same_tokens"] >= math.floor(agreeing * checked["tokens"]) > 0
    assert len(checked["differences"]) == checked["prompts"] - checked["same_prompts"]
    assert f"{checked['same_prompts']} of 3 prompts" in checked["summary"]
    assert ("merge.fallback" in ended.events()) == (fallbacks > 0)
    assert "merge.checked" in ended.events()
    assert 'PARAMETER stop "<|end|>"' in ended.result["modelfile"]


def test_smollm2_is_converted_with_its_tokens_and_its_chat_template(merge: Merge) -> None:
    model = smollm2()
    ended = merge(model, gguf={"type": "q8_0"}, inputs={"model.source.identifier": str(model)})
    assert ended.code == 0, ended.status.error
    checked = ended.result["gguf"]["check"]
    assert checked["same_tokenization"]
    assert checked["same_tokens"] >= 0.8 * checked["tokens"] > 0
    # Where the answers part, the model itself has found both continuations almost equal.
    assert all(each["model_probability"] - each["gguf_probability"] < 0.05 for each in checked["differences"])
    text = ended.result["modelfile"]
    assert "<|im_start|>system\nYou are a helpful AI assistant named SmolLM" in text
    assert "{{ .Content }}<|im_end|>\n{{ if $last }}<|im_start|>assistant\n{{ end }}" in text
    assert 'PARAMETER stop "<|im_end|>"' in text


def test_a_file_of_another_model_is_found_out(tmp_path: Path) -> None:
    """The check compares what the file answers: it is not enough that it loads."""
    import torch
    from transformers import AutoModelForCausalLM

    from tunefleet.workloads import assets

    model = assets.locate(BUILTIN, "model")
    wanted = GgufSpec(type="f16")
    converter = gguf.find(wanted)
    other = tmp_path / "other"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    changed: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        changed.model.layers[0].mlp.down_proj.weight.mul_(-3)
    changed.save_pretrained(other)
    made = gguf.convert(other, tmp_path / "other.gguf", wanted, converter, "one")
    found = gguf_check.compare(model, Path(made["path"]), converter.server, Source(BUILTIN, str(model)))
    assert found["same_prompts"] == 0
    first = found["differences"][0]
    assert first["model"] != first["gguf"]
    assert first["model_probability"] > first["gguf_probability"]


def test_what_llama_cpp_cannot_load_is_an_error(tmp_path: Path) -> None:
    from tunefleet.errors import ModelError
    from tunefleet.workloads import assets

    model = assets.locate(BUILTIN, "model")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match=r"llama\.cpp cannot load the GGUF file"):
        gguf_check.compare(model, broken, gguf.find(GgufSpec()).server, Source(BUILTIN, str(model)))
