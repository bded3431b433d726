"""A GGUF file: the real converter where there is one, and what is said where there is none or it fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.fakes import llama_cpp as double
from tests.integration.merge.conftest import BUILTIN, Merge, lora
from tests.libraries import required
from tunefleet.errors import MachineError, ModelError
from tunefleet.spec.tasks.merge_task import GgufSpec
from tunefleet.workloads import assets
from tunefleet.workloads.merging import gguf
from tunefleet.workloads.merging.gguf_run import splitting

required("peft")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

QUANTIZE = f"""#!{sys.executable}
# A fake of llama-quantize.
import sys
open(sys.argv[2], "wb").write(open(sys.argv[1], "rb").read() + sys.argv[3].encode())
"""


@pytest.fixture
def llama_cpp(tmp_path: Path) -> Path:
    """A folder with a converter that is a double, and the packages that it needs."""
    return double.make(tmp_path / "llama.cpp")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the environment `gguf`, which is made for the proofs."""
    monkeypatch.setenv("TUNEFLEET_ENVS_DIR", str(tmp_path / "envs"))


def test_what_is_missing_is_named_with_the_way_out(llama_cpp: Path, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"convert_hf_to_gguf.py is neither in TUNEFLEET_LLAMA_CPP nor on the PATH"):
        gguf.find(GgufSpec(), {"PATH": str(tmp_path)})
    with pytest.raises(
        MachineError,
        match=r"has no convert_hf_to_gguf\.py.*Unset TUNEFLEET_LLAMA_CPP, and run `tunefleet env create gguf`",
    ):
        gguf.find(GgufSpec(), {"TUNEFLEET_LLAMA_CPP": str(tmp_path)})
    there = {"TUNEFLEET_LLAMA_CPP": str(llama_cpp), "PATH": ""}
    assert gguf.find(GgufSpec(type="bf16"), there).quantize == ()
    with pytest.raises(MachineError, match=r"type q4_k_m needs llama-quantize.*tunefleet env create gguf"):
        gguf.find(GgufSpec(type="q4_k_m"), there)
    (llama_cpp / "sentencepiece" / "__init__.py").unlink()
    (llama_cpp / "sentencepiece").rmdir()
    if "sentencepiece" not in sys.modules and not any(Path(p, "sentencepiece").exists() for p in sys.path if p):
        with pytest.raises(MachineError, match=r"needs sentencepiece, which the interpreter .* -m pip install"):
            gguf.find(GgufSpec(), there)


def test_the_converter_is_told_how_a_tokenizer_of_ones_own_splits_text(llama_cpp: Path, tmp_path: Path) -> None:
    model = assets.locate(BUILTIN, "model")
    (llama_cpp / "llama-quantize").write_text(QUANTIZE)
    (llama_cpp / "llama-quantize").chmod(0o755)
    wanted = GgufSpec(type="q4_k_m")
    converter = gguf.find(wanted, {"TUNEFLEET_LLAMA_CPP": str(llama_cpp), "PATH": ""})
    (tmp_path / ".model.gguf.killed").write_bytes(b"half")
    made = gguf.convert(model, tmp_path / "model.gguf", wanted, converter, "one")
    assert (tmp_path / "model.gguf").read_bytes() == b"GGUFsmollmf16Q4_K_M"
    assert made["size_bytes"] == 19
    assert not list(tmp_path.glob(".model.gguf.*"))
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "tokenizer.json").write_text('{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Whitespace"}}')
    assert splitting(strange) is None
    with pytest.raises(ModelError, match=r"does not support this model's pre-tokenizer"):
        gguf.convert(strange, tmp_path / "model.gguf", GgufSpec(), converter, "two")


def test_without_a_converter_nothing_is_merged(merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_LLAMA_CPP", str(tmp_path))
    ended = merge(BUILTIN, lora(BUILTIN, tmp_path / "adapter"), gguf={"type": "q8_0"})
    assert ended.code == 2
    assert "This worker cannot create a GGUF file" in (ended.status.error or "")
    assert not (ended.folder.root / ".merge").exists()


@pytest.mark.proof
@pytest.mark.skipif(not os.environ.get("LLAMA_CPP"), reason="LLAMA_CPP names no folder of llama.cpp")
def test_the_real_converter_makes_a_file_that_answers_as_the_merged_model_does(
    merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("TUNEFLEET_LLAMA_CPP", os.environ["LLAMA_CPP"])
    ended = merge(BUILTIN, lora(BUILTIN, tmp_path / "adapter"), gguf={"type": "f16"})
    made = ended.result["gguf"]
    assert (made["name"], made["type"]) == ("model-f16.gguf", "f16")
    tokens = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        one = AutoModelForCausalLM.from_pretrained(ended.product, dtype=torch.float32)(tokens).logits
        folder, name = os.path.split(made["path"])
        other = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)(tokens).logits
    assert float((one - other).square().mean().sqrt() / one.std()) < 5e-3
