"""Verifications of models that are whole, damaged, or do not go with their tokenizer; and models with another one."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.integration.ended import EndedJob
from tests.integration.merge.conftest import BUILTIN, llama
from tests.integration.merge.hubs import Served
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import session
from tunefleet.workloads import assets, entrypoint


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, AutoTokenizer, load_file, save_file, torch
    pytest.importorskip("torch")

    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer


pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]

Verify = Callable[..., EndedJob]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    """Run a verification of a model, with keys of the spec beside it."""
    numbers = itertools.count(1)

    def go(model: str | Path, *, tokenizer: str | Path | None = None, **spec: Any) -> EndedJob:
        launch = f"launch-{next(numbers)}"
        folder = JobFolder(tmp_path / f"job-{launch}")
        folder.root.mkdir()
        session._sessions.clear()
        named = {"source": {"identifier": str(model)}} | ({} if tokenizer is None else {"tokenizer": str(tokenizer)})
        job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": launch, "kind": "verify", "name": "t"}
        job["program"] = "tunefleet.workloads.verification:main"
        job["spec"] = {"taskType": "verify", "model": named, **spec}
        folder.job_json.write_text(json.dumps(job))
        return EndedJob(entrypoint.main(folder.root), folder, launch)

    return go


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the model that is shipped."""
    folder = tmp_path / "model"
    shutil.copytree(assets.locate(BUILTIN, "model"), folder)
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def test_a_whole_model_is_told_of(verify: Verify) -> None:
    ended = verify(BUILTIN, verify={"chat_template": True})
    result = ended.result
    assert (result["files"], result["dtypes"]) == ([WEIGHTS], ["BF16"])
    assert result["vocabulary"] == {
        "tokens": 2048, "rows": 2048, "tokenizer_of": BUILTIN, "moved": None, "chat_template": True
    }  # fmt: skip
    assert result["forward"] == {"positions": 32, "device": "cpu", "dtype": "float32"}
    assert not (ended.folder.root / "final_model").exists()


def _cut(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def _misplaced(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = next(name for name, each in header.items() if len(each.get("shape", ())) == 2)
    header[name]["shape"][0] += 1
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length, "the header is as long as before"
    (folder / WEIGHTS).write_bytes(data[:8] + text + data[8 + length :])


def _not_a_number(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def _one_less(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def _nothing(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"].zero_()
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def _one_token_more(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<one-too-many>"])
    tokenizer.save_pretrained(folder)


def _no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (_cut, "it is incomplete"),
    (_misplaced, "of the shape"),
    (lambda folder: (folder / WEIGHTS).unlink(), f"has no {WEIGHTS}"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
    (lambda folder: edit(folder / "config.json", vocab_size=2050), "vocab_size: 2050, its embeddings have 2048"),
    (lambda folder: edit(folder / "generation_config.json", eos_token_id=[1, 2048]), "eos_token_id: 2048"),
    (_one_token_more, "'<one-too-many>' at 2048, but the model has embeddings for 2048"),
    (_no_template, "has no chat template, but the rows are chats"),
    (_one_less, "lack model.layers.1.mlp.up_proj.weight"),
    (_not_a_number, "not finite"),
    (_nothing, "returns constant logits"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES, ids=lambda each: str(each)[:20])
def test_damage_has_its_sentence(verify: Verify, copied: Path, damage: Callable[[Path], object], sentence: str) -> None:
    damage(copied)
    ended = verify(copied, verify={"chat_template": True})
    assert ended.code == 2
    assert sentence in (ended.status.error or "")
    assert ended.status.error_kind == "input", "it is not tried again"


def test_an_index_says_what_is_where(verify: Verify, tmp_path: Path, copied: Path) -> None:
    whole = llama(tmp_path / "sharded", tied=False, max_shard_size="24KB", vocab_size=2048)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(copied / name, whole)
    assert len(verify(whole).result["files"]) > 2
    before = json.loads((whole / INDEX).read_bytes())["weight_map"]
    files = list(before.values())
    first = next(each for each in files if files.count(each) > 1)
    other = next(each for each in files if each != first)
    name = next(each for each, file in before.items() if file == first)
    for placed, sentence in (
        ({**before, name: other}, f"says that {other} contains {name}, but {first} does"),
        ({**before, "model.odd.weight": other}, "model.odd.weight, which is in no file"),
        ({each: file for each, file in before.items() if each != name}, f"{first} holds {name}, which"),
    ):
        edit(whole / INDEX, weight_map=placed)
        assert sentence in (verify(whole, verify={"forward": False}).status.error or "")
    edit(whole / INDEX, weight_map=before)
    (whole / other).unlink()
    assert f"names {other}, which does not exist" in (verify(whole).status.error or "")


def test_a_model_gets_another_tokenizer_and_keeps_its_weights(
    verify: Verify, served: Served, copied: Path, tmp_path: Path
) -> None:
    other = AutoTokenizer.from_pretrained(copied)
    other.eos_token, other.pad_token = other.convert_ids_to_tokens([7])[0], other.convert_ids_to_tokens([9])[0]
    other.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / WEIGHTS).write_bytes(b"not fetched")
    served.put("org/tokenizer", tmp_path / "other")
    served.put("org/model", copied)
    ended = verify("org/model", tokenizer="org/tokenizer", verify={"chat_template": True})
    result, made = ended.result, ended.folder.root / "final_model"
    assert result["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert result["vocabulary"]["tokenizer_of"] == "org/tokenizer"
    assert result["vocabulary"]["moved"] == 0
    assert (made / WEIGHTS).read_bytes() == (copied / WEIGHTS).read_bytes()
    loaded = AutoTokenizer.from_pretrained(made)
    assert (loaded.eos_token_id, loaded.pad_token_id) == (7, 9)
    assert loaded.chat_template == other.chat_template
    for name in ("config.json", "generation_config.json"):
        said = json.loads((made / name).read_bytes())
        assert (said["eos_token_id"], said["pad_token_id"]) == (7, 9), name
    model = AutoModelForCausalLM.from_pretrained(made)
    assert model.get_input_embeddings().weight.shape[0] == 2048
    assert model.generation_config.eos_token_id == 7
    assert not [each for each in served.hub.repos if each.startswith("tester/")], "nothing is published"


def test_a_tokenizer_that_does_not_fit_is_refused_and_nothing_is_left(
    verify: Verify, copied: Path, tmp_path: Path
) -> None:
    shutil.copytree(copied, tmp_path / "larger")
    _one_token_more(tmp_path / "larger")
    ended = verify(BUILTIN, tokenizer=tmp_path / "larger")
    assert "embeddings are not resized" in (ended.status.error or "")
    assert not (ended.folder.root / "final_model").exists()
    moved = tmp_path / "moved"
    shutil.copytree(copied, moved)
    said = json.loads((moved / "tokenizer.json").read_bytes())
    vocabulary = said["model"]["vocab"]
    first, second = [token for token, at in vocabulary.items() if at in {1500, 1501}]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (moved / "tokenizer.json").write_text(json.dumps(said))
    ended = verify(BUILTIN, tokenizer=moved, verify={"forward": False})
    assert ended.result["vocabulary"]["moved"] == 2
    assert any("have a different id" in str(each) for each in ended.records("event"))


def test_too_little_memory_is_said_before_anything_is_loaded(verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    ended = verify(BUILTIN)
    assert "0.0 GB are free" in (ended.status.error or "")
    assert "model.verify: files" in (ended.status.error or "")
    assert verify(BUILTIN, verify={"forward": False}).result["forward"] is None


def test_a_gpu_without_room_is_no_reason_to_take_the_cpu_unasked(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
    ended = verify(BUILTIN)
    assert ended.code == 2
    assert "Set TUNEFLEET_CAMPAIGN_CPU=true" in (ended.status.error or "")
