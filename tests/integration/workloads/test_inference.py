"""Inferences in this process with the real engine, on a model so small that an answer takes milliseconds."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workloads.conftest import Ended
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import session
from tunefleet.workloads import entrypoint
from tunefleet.workloads.engine.protocol import EngineModel


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, AutoTokenizer, LoraConfig, Near, PeftModel, TransformersEngine, engines, get_peft_model
    global open_engine, torch
    pytest.importorskip("peft")

    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tunefleet.workloads.engine.server import open_engine
    from tunefleet.workloads.engine.transformers_backend import TransformersEngine
    from tunefleet.workloads.inference import engines

    class Near(TransformersEngine):
        """The real engine, in this process instead of one of its own."""

        was_loaded = False
        pid = 0
        asked: list[str] = []
        most: int | None = None

        def generate(self, requests: Any, **_: Any) -> Iterator[Any]:
            for number, answer in enumerate(super().generate(requests)):
                if number == Near.most:
                    raise SystemExit("killed")
                Near.asked.append(next(each.prompt for each in requests if each.key == answer.key))
                yield answer


# What a library will change one day, in a call of another library.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

Infer = Callable[..., Ended]
PROMPTS = ["Ada has three apples.", "How many eggs?", "Ten dollars an hour"]
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture
def infer(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Infer:
    """Run an inference: keywords are blocks of its spec; `again=` starts another launch on an older folder."""

    def connect(model: EngineModel, **_: Any) -> Near:
        engine = open_engine(model)
        engine.__class__ = Near
        assert isinstance(engine, Near)
        return engine

    monkeypatch.setattr(engines, "connect", connect)
    monkeypatch.setattr(Near, "asked", [])
    monkeypatch.setattr(Near, "most", None)
    numbers = itertools.count(1)

    def go(
        again: Ended | None = None, inputs: dict[str, str] | None = None, children: Any = (), **blocks: Any
    ) -> Ended:
        number = next(numbers)
        folder = again.folder if again else JobFolder(tmp_path / f"job-{number}")
        folder.root.mkdir(exist_ok=True)
        spec = {"taskType": "inference", "model": {"source": {"identifier": str(tiny_model)}}, "inference": GREEDY}
        spec |= {"data": {"type": "list", "items": PROMPTS}} | blocks
        launch = f"launch-{number}"
        session._sessions.clear()
        job = {"job_id": "own", "task_id": "own", "attempt": 1, "launch": launch, "kind": "inference", "name": "t"}
        job |= {"program": "tunefleet.workloads.inference:main", "spec": spec, "inputs": inputs or {}}
        job["merge_children"] = [{"task_id": name, "spec": spec | changes} for name, changes in children]
        folder.job_json.write_text(json.dumps(job))
        return Ended(entrypoint.main(folder.root), folder, launch)

    return go


def outputs(result: dict[str, Any]) -> list[Any]:
    return [item["output"] for item in result["items"]]


def by_hand(model: Any, tokenizer: Any, prompts: list[str]) -> list[str]:
    """What the model answers, by the library alone."""
    answers = []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(**ids, max_new_tokens=8, do_sample=False)
        answers.append(tokenizer.decode(made[0][ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter that changes every answer."""
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    folder = tmp_path_factory.mktemp("adapter")
    get_peft_model(base, config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def merged(tiny_model: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a whole model, with the tokenizer."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    folder = tmp_path_factory.mktemp("merged")
    PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(tiny_model: Path, merged: Path) -> tuple[list[str], list[str]]:
    """What the base answers, and what the tuned model does."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    found = [by_hand(AutoModelForCausalLM.from_pretrained(path), tokenizer, PROMPTS) for path in (tiny_model, merged)]
    assert all(base != tuned for base, tuned in zip(*found, strict=True))
    return found[0], found[1]


@pytest.mark.parametrize("form", ["base", "adapter", "adapter_merged", "load_adapter", "load_model", "load_file"])
def test_every_way_to_name_weights_answers_with_them(
    infer: Infer, adapter: Path, merged: Path, expected: tuple[list[str], list[str]], tiny_model: Path, form: str
) -> None:
    model = {"source": {"identifier": str(tiny_model)}}
    load = {"checkpoint": {"load": {"type": "local", "path": "given"}}}
    here = "checkpoint.load.path"
    forms: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "base": ({}, {}),
        "adapter": ({"model": {**model, "adapters": [{"path": "given"}]}}, {"model.adapters.0.path": str(adapter)}),
        "adapter_merged": (
            {"model": {**model, "adapters": [{"taskId": "task-1", "apply": "merge"}]}},
            {"model.adapters.0": str(adapter)},
        ),
        "load_adapter": (load, {here: str(adapter)}),
        "load_model": ({"checkpoint": {"load": {"taskId": "task-1"}}}, {"checkpoint.load": str(merged)}),
        "load_file": (load, {here: str(merged / "model.safetensors")}),
    }
    blocks, inputs = forms[form]
    result = infer(inputs=inputs, **blocks).result
    assert outputs(result) == expected[form != "base"]


def test_several_adapters_answer_the_items_that_name_them(
    infer: Infer, adapter: Path, tiny_model: Path, expected: tuple[list[str], list[str]]
) -> None:
    adapters = [{"name": "tuned", "path": "a"}, {"name": "weak", "path": "b", "scale": 1e-6}]
    data = {"type": "list", "items": [PROMPTS[0]] * 2, "metadata": [{"adapter": "tuned"}, {"adapter": "weak"}]}
    inputs = {f"model.adapters.{at}.path": str(adapter) for at in (0, 1)}
    model = {"source": {"identifier": str(tiny_model)}, "adapters": adapters}
    assert outputs(infer(inputs=inputs, data=data, model=model).result) == [expected[1][0], expected[0][0]]


def test_an_adapter_of_another_model_is_refused(infer: Infer, adapter: Path, tmp_path: Path) -> None:
    load = {"load": {"type": "local", "path": "given"}}
    model = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
    ended = infer(inputs={"checkpoint.load.path": str(adapter)}, checkpoint=load, model=model)
    assert (ended.code, ended.status.error_kind) == (2, "input")
    assert "cannot be loaded onto this model" in (ended.status.error or "")
    empty = tmp_path / "empty"
    empty.mkdir()
    ended = infer(inputs={"checkpoint.load.path": str(empty)}, checkpoint=load)
    assert "contains neither a model (config.json) nor an adapter" in (ended.status.error or "")


def test_a_killed_run_asks_only_what_has_no_answer(
    infer: Infer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    items = [f"Question {number}" for number in range(7)]
    data = {"type": "list", "items": items}
    monkeypatch.setattr(Near, "most", 3)
    with pytest.raises(SystemExit):
        infer(data=data)
    monkeypatch.setattr(Near, "most", None)
    first = list(Near.asked)
    killed = Ended(1, JobFolder(tmp_path / "job-1"), "launch-1")
    result = infer(again=killed, data=data).result
    assert len(first) == 3
    assert len(Near.asked) == len(set(Near.asked)) == 7
    assert (result["usage"]["computed"], result["usage"]["resumed"]) == (4, 3)
    assert [item["prompt"] for item in result["items"]] == items


def test_answers_that_are_all_empty_are_warned_of(infer: Infer) -> None:
    last = infer()
    kept = last.folder.root / "answers.jsonl"
    head, *lines = map(json.loads, kept.read_text().splitlines())
    for texts in (["", "yes", ""], ["", " ", ""]):
        for line, text in zip(lines, texts, strict=True):
            line["choices"][0]["text"] = text
        kept.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
        last.folder.responses_json.unlink()  # as if it had been killed before
        last = infer(again=last)
        assert outputs(last.result) == texts
        told = [("inference.empty", last.result["warning"])] if "yes" not in texts else []
        assert warnings_of(last) == told


def warnings_of(ended: Ended) -> list[tuple[str, str]]:
    return [(each["name"], each["message"]) for each in ended.records("event") if each["level"] == "warning"]


def test_weights_that_were_fetched_anew_are_the_same_and_others_are_not(
    infer: Infer, adapter: Path, tmp_path: Path
) -> None:
    load = {"load": {"taskId": "task-1"}}
    own, elsewhere = tmp_path / "job-1" / "imported_checkpoint", tmp_path / "elsewhere"
    for place, asked in ((own, len(PROMPTS)), (elsewhere, 2 * len(PROMPTS))):
        Near.asked.clear()
        shutil.copytree(adapter, place)
        ended = infer(checkpoint=load, inputs={"checkpoint.load": str(place)})
        ended.folder.responses_json.unlink()
        for file in place.iterdir():
            os.utime(file, (1, 1))
        assert infer(again=ended, checkpoint=load, inputs={"checkpoint.load": str(place)}).code == 0
        assert len(Near.asked) == asked


def test_answers_are_several_with_probabilities_and_what_they_cost(infer: Infer) -> None:
    inference = {"temperature": 1, "seed": 3, "n": 3, "logprobs": 2, "max_tokens": 4, "top_k": 0}
    result = infer(inference=inference).result
    assert [len(item["choices"]) for item in result["items"]] == [3, 3, 3]
    first = result["items"][0]
    assert len({choice["output"] for choice in first["choices"]}) > 1
    assert first["output"] == first["choices"][0]["output"]
    assert all(2 <= len(place) <= 3 for choice in first["choices"] for place in choice["logprobs"])
    assert {"token", "id", "logprob"} == set(first["choices"][0]["logprobs"][0][0])
    usage = result["usage"]
    assert usage["completion_tokens"] <= 3 * 3 * 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert infer(inference=inference).result["items"] == result["items"], "the same seed, the same answers"


def test_answers_obey_their_fields_and_one_that_was_cut_says_so(infer: Infer) -> None:
    fields = [
        {"name": "age", "type": "int", "min": 1, "max": 9},
        {"name": "kind", "candidates": ["cat", "dog"]},
        {"name": "born", "type": "date"},
    ]
    whole = infer(inference={"temperature": 0, "max_tokens": 80, "templates": fields}).result
    for item in whole["items"]:
        assert 1 <= item["parsed"]["age"] <= 9
        assert item["parsed"]["kind"] in {"cat", "dog"}
        assert json.loads(item["output"]) == item["parsed"]
    assert whole["usage"]["invalid"] == 0
    cut = infer(inference={"temperature": 0, "max_tokens": 3, "templates": fields}).result
    assert cut["usage"]["invalid"] == 3
    assert cut["items"][0]["parsed"] is None
    assert "It was truncated: raise inference.max_tokens." in cut["items"][0]["error"]


def test_a_prompt_that_is_too_long_is_named_and_the_others_are_answered(infer: Infer) -> None:
    data = {"type": "list", "items": ["short", "long " * 2000, "brief"]}
    result = infer(data=data).result
    assert [item["output"] is None for item in result["items"]] == [False, True, False]
    assert "tokens, but the model supports 256" in result["items"][1]["error"]
    assert result["usage"]["failed"] == 1
    ended = infer(data={"type": "list", "items": ["long " * 2000]})
    assert ended.status.error_kind == "input"


def test_the_system_prompt_stands_where_the_model_wants_it(infer: Infer, tiny_model: Path, tmp_path: Path) -> None:
    inference = {**GREEDY, "system_prompt": "Be brief."}
    data = {"type": "list", "items": ["Hi"]}

    def rendered(**blocks: Any) -> str:
        result: dict[str, Any] = infer(data=data, **blocks).result
        return str(result["items"][0]["metadata"]["rendered_prompt"])

    assert rendered(inference=inference) == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    assert rendered(inference={**inference, "chat_template": False}) == "Be brief.\nHi"
    plain = tmp_path / "plain"
    shutil.copytree(tiny_model, plain)
    (plain / "chat_template.jinja").unlink()
    model = {"source": {"identifier": str(plain)}}
    assert rendered(inference=inference, model=model) == "Be brief.\nHi"
    refused = infer(inference={**inference, "chat_template_kwargs": {"enable_thinking": False}}, model=model)
    assert "spec.inference.chat_template_kwargs: the model has no chat template" in (refused.status.error or "")


def test_a_task_that_goes_along_has_its_own_file_or_its_own_error(infer: Infer) -> None:
    export = {"path": "rows.jsonl", "fields": {"p": "prompt", "o": "output"}}
    children = [
        ("good", {"data": {"type": "list", "items": [PROMPTS[1], "Something else"]}}),
        ("bad", {"data": {"type": "dataset", "url": "builtin:gsm8k", "column": "nope"}}),
        ("long", {"data": {"type": "list", "items": ["long " * 2000]}}),
    ]
    ended = infer(children=children, postprocess={"jsonl_export": export})
    result = ended.result
    good, bad = result["children"]["good"], result["children"]["bad"]
    assert outputs(good)[0] == outputs(result)[1]
    assert (good["usage"]["computed"], good["usage"]["deduplicated"]) == (1, 1)
    assert sorted(Near.asked) == sorted(
        {item["metadata"]["rendered_prompt"] for r in (result, good) for item in r["items"]}
    )
    rows = (ended.folder.root / "children" / "good" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(row)["p"] for row in rows] == [PROMPTS[1], "Something else"]
    assert bad["ok"] is False
    assert "has no column 'nope'" in bad["error"]
    assert result["children"]["long"]["ok"] is False, "as it would by itself"
    assert "None of the 1 items could be answered: Prompt" in result["children"]["long"]["error"]
    assert "children" not in good


def test_vllm_is_asked_for_and_not_there(
    infer: Infer, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNEFLEET_ENVS_DIR", str(tmp_path / "envs"))
    model = {"source": {"identifier": str(tiny_model)}, "vllm": {"max_model_len": 64}}
    ended = infer(model=model)
    assert "The spec has a model.vllm block, but vLLM cannot run here." in (ended.status.error or "")
    assert infer().result["engine"] == "transformers"
