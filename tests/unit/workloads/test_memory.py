"""What a training will take: the parts, what is learnt from earlier ones, and what a user reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.analysis.memory import Load, Shape, estimate
from tunefleet.spec import load_task_spec
from tunefleet.workloads import assets


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global BF16, Kernels, Memory, Source, model_shape, memory
    pytest.importorskip("torch")

    from tunefleet.workloads.common.base_model import Source
    from tunefleet.workloads.training.model import memory
    from tunefleet.workloads.training.model.hardware import Kernels
    from tunefleet.workloads.training.model.memory import Memory, model_shape

    BF16 = Kernels("bfloat16", "sdpa", liger=False, varlen=False)


pytestmark = pytest.mark.torch
GIB = 1 << 30
# Llama 3 8B.
EIGHT = Shape(8_030_000_000, 6_980_000_000, 8_030_000_000, 32, 4096, 14336, 128_256)


def spec(kind: str = "sft", **blocks: Any) -> Any:
    base = {"taskType": kind, "model": {"source": {"identifier": "m"}}, "data": {"path": "rows.jsonl"}}
    return load_task_spec({**base, **blocks})


def test_a_full_training_takes_sixteen_bytes_a_parameter_and_an_adapter_hardly_more_than_the_model() -> None:
    full = estimate(EIGHT, spec(), "bfloat16", 1024)
    fixed = full.weights_bytes + full.gradients_bytes + full.optimizer_bytes
    assert fixed == 16 * EIGHT.weights
    lora = estimate(replace(EIGHT, trained=42_000_000), spec("lora_sft"), "bfloat16", 1024)
    assert 15 * GIB < lora.weights_bytes < 16 * GIB
    four = spec("lora_sft", quantization={"load_in_4bit": True})
    small = estimate(replace(EIGHT, trained=42_000_000), four, "bfloat16", 1024)
    assert 5 * GIB < small.weights_bytes < 7 * GIB
    assert small.optimizer_bytes < 0.4 * GIB


def test_the_value_model_of_ppo_is_whole_also_beside_a_quantised_policy() -> None:
    block = {"reward_model": {"identifier": "judge"}, "lora": {"r": 8}, "quantization": {"load_in_4bit": True}}
    small = replace(EIGHT, trained=42_000_000)
    wanted, load = spec("ppo", **block), Load(sequences=2, value_model=True)
    made, alone = estimate(small, wanted, "bfloat16", 64, load=load), estimate(small, wanted, "bfloat16", 64)
    assert alone.value_model_bytes == 0
    assert made.value_model_bytes == 2 * EIGHT.weights + 16 * small.trained
    whole = estimate(EIGHT, spec("ppo", reward_model={"identifier": "judge"}), "bfloat16", 64, load=load)
    assert whole.value_model_bytes == 16 * EIGHT.weights
    assert whole.raw_bytes - replace(whole, value_model_bytes=0).raw_bytes == whole.value_model_bytes


def test_batch_length_and_checkpointing_move_what_the_way_back_keeps() -> None:
    plain = estimate(EIGHT, spec(training={"gradient_checkpointing": False, "batch_size": 2}), "bfloat16", 1024)
    twice = estimate(EIGHT, spec(training={"gradient_checkpointing": False, "batch_size": 4}), "bfloat16", 1024)
    saved = estimate(EIGHT, spec(training={"gradient_checkpointing": True, "batch_size": 2}), "bfloat16", 1024)
    assert twice.activations_bytes == 2 * plain.activations_bytes
    assert saved.activations_bytes < plain.activations_bytes / 8
    assert estimate(EIGHT, spec(), "bfloat16", 1024, liger=True).logits_bytes == 0
    quarter = estimate(EIGHT, spec(), "bfloat16", 1024, labelled=0.25)
    assert 4 * quarter.logits_bytes == estimate(EIGHT, spec(), "bfloat16", 1024).logits_bytes


def test_the_weights_of_the_shipped_model_are_counted_without_being_made() -> None:
    source = Source("shipped", str(assets.locate("builtin:gsm8k-llama-2m", "model")))
    shape = model_shape(source, spec("lora_sft", lora={"r": 4, "target_modules": ["q_proj"]}))
    assert (shape.layers, shape.hidden) == (4, 192)
    assert 2_100_000 < shape.weights < 2_200_000
    assert shape.trained == 4 * 4 * (192 + 192)


class Journal:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def event(self, *fields: Any) -> None:
        self.events.append(fields)


def test_what_will_not_fit_is_a_warning_with_a_way_out_and_the_outcome_corrects_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "model_shape", lambda *_: EIGHT)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB))
    monkeypatch.setattr(memory, "_peak", lambda _: 0)
    journal = Journal()
    first = Memory(tmp_path, spec(), "cpu", None)
    first.report_estimate(Source("m", "m"), BF16, 1024, journal)  # type: ignore[arg-type]
    name, text, level, data = journal.events[0]
    assert (name, level, data["available_bytes"]) == ("memory.estimate", "warning", 8 * GIB)
    assert "8.00 GiB are free: this will not fit. Use `taskType: lora_sft`" in text
    assert first.estimate is not None
    monkeypatch.setattr(memory, "_peak", lambda _: first.estimate.raw_bytes * 3 // 2)
    assert first.outcome()["peak_bytes"] == first.estimate.raw_bytes * 3 // 2
    assert json.loads((tmp_path / memory.RATIOS_FILE).read_text()) == {"m sft plain cpu": 1.5}
    again = Memory(tmp_path, spec(), "cpu", None)
    again.report_estimate(Source("m", "m"), BF16, 1024, journal)  # type: ignore[arg-type]
    assert again.estimate is not None
    assert again.estimate.total_bytes == pytest.approx(1.5 * first.estimate.total_bytes, rel=1e-6)
