"""Every number of the task kinds has limits: what is inside is taken, what is outside is refused where it stands."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.spec.kinds.whole_documents import whole
from tunefleet.errors import SpecError
from tunefleet.spec import deep_set, load_task_spec

WHOLE: list[tuple[str, str, int, int]] = [
    ("echo", "resources.estimatedLoad", 0, 2**40),
    ("echo", "priority", -100, 100),
    ("echo", "output.destination.retries", 0, 100),
    ("inference", "parallel.max_shards", 1, 1024),
    ("inference", "inference.max_tokens", 1, 10_000_000),
    ("inference", "inference.top_k", -1, 2**40),
    ("inference", "inference.seed", 0, 2**63 - 1),
    ("inference", "inference.n", 1, 128),
    ("inference", "inference.logprobs", 0, 100),
    ("inference", "model.vllm.max_model_len", 1, 2**40),
    ("inference", "data.seed", 0, 2**32 - 1),
    ("rag", "search.top_k", 1, 10_000),
    ("api", "api.retries", 0, 10),
    ("api", "api.concurrency", 1, 8),
    ("api", "api.response.max_body_bytes", 1, 64 * 1024 * 1024),
    ("python", "pythonOutput.maxBytes", 1, 1 << 40),
    ("ppo", "reward_model.max_length", 1, 1_000_000),
    ("ppo", "training.ppo_epochs", 1, 2**40),
    ("sft", "training.seed", 0, 2**32 - 1),
]
REAL: list[tuple[str, str, float, float, bool]] = [
    # the last says whether the lower limit itself is taken
    ("echo", "sloSeconds", 0, 604_800, False),
    ("echo", "output.destination.timeoutSec", 0, 604_800, False),
    ("echo", "output.destination.retryBackoffSec", 0, 3600, True),
    ("inference", "checkpoint.load.timeoutSec", 0, 604_800, False),
    ("inference", "inference.temperature", 0.001, 100, True),
    ("inference", "inference.top_p", 0, 1, False),
    ("inference", "inference.min_p", 0, 1, True),
    ("inference", "inference.presence_penalty", -2, 2, True),
    ("inference", "inference.frequency_penalty", -2, 2, True),
    ("inference", "model.vllm.gpu_memory_utilization", 0, 1, False),
    ("inference", "model.adapters.0.scale", 0, 100, False),
    ("api", "api.timeout_sec", 0, 3600, False),
    ("python", "timeoutSeconds", 0, 3600, False),
    ("dpo", "training.beta", 0, 100, False),
    ("ppo", "training.kl_coef", 0, 100, True),
    ("ppo", "reward_model.scale", -1000, 1000, True),
    ("lora_sft", "data.jsonl.download_timeoutSec", 0, 604_800, False),
]
QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(kind: str, path: str, value: Any) -> bool:
    spec = whole(kind)
    if path == "inference.max_tokens":
        spec["inference"]["min_tokens"] = 0
    deep_set(spec, path, value)
    found: list[str] = []
    try:
        load_task_spec(spec)
    except SpecError as error:
        found = [fault.path for fault in error.faults]
    assert found in ([], [f"spec.{path}"])
    return bool(found)


@pytest.mark.parametrize(("kind", "path", "low", "high"), WHOLE)
def test_whole_numbers(kind: str, path: str, low: int, high: int) -> None:
    @QUICK
    @given(st.integers(low, high) | st.sampled_from([low, high]))
    def inside(value: int) -> None:
        assert not refused(kind, path, value)
        assert not refused(kind, path, str(value)), "older documents write numbers in quotes"

    @QUICK
    @given(st.integers(max_value=low - 1) | st.just(low - 1))
    def below(value: int) -> None:
        assert refused(kind, path, value)

    inside()
    below()
    if high < 2**40:
        assert refused(kind, path, high + 1)
    for odd in (True, low + 0.5, "many", [low], math.inf):
        assert refused(kind, path, odd)


@pytest.mark.parametrize(("kind", "path", "low", "high", "closed"), REAL)
def test_real_numbers(kind: str, path: str, low: float, high: float, closed: bool) -> None:
    @QUICK
    @given(st.floats(low, high, exclude_min=not closed, allow_subnormal=False))
    def inside(value: float) -> None:
        assert not refused(kind, path, value)

    inside()
    assert refused(kind, path, low) != closed
    for odd in (low - 1, high * 1.01 + 1, True, "much", math.inf, math.nan):
        assert refused(kind, path, odd)


@QUICK
@given(st.integers())
def test_a_zero_stage_is_clamped(stage: int) -> None:
    spec = load_task_spec(whole("sft") | {"training": {"zero_stage": stage}, "checkpoint": {}, "predictions": None,
                                          "evaluate": {}, "data": {"prompts": ["a"]}})  # fmt: skip
    assert spec.training.stage == min(max(stage, 1), 3)  # type: ignore[union-attr]
