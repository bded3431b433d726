"""From `model.vllm` to vLLM's arguments, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import InputError, MachineError
from tunefleet.spec.options.served_model import VllmSpec
from tunefleet.workloads.engine.protocol import EngineModel, Sampling
from tunefleet.workloads.engine.vllm_options import Machine, engine_args, sampling_params, utilization

GPUS = Machine(4, (1.0, 0.97, 1.0, 1.0))
KNOWN = frozenset(VllmSpec.model_fields) - {"swap_space", "env_vars"} | {
    "model", "disable_log_stats", "max_logprobs", "hf_overrides", "enable_lora", "max_lora_rank", "max_loras",
    "max_cpu_loras",
}  # fmt: skip


def build(
    options: dict[str, Any], machine: Machine = GPUS, ranks: tuple[int, ...] = ()
) -> tuple[dict[str, Any], list[str]]:
    model = EngineModel("folder", "name", engine="vllm", options=options)
    return engine_args(model, "folder", machine, known=KNOWN, ranks=ranks)


def test_every_option_of_the_spec_reaches_vllm_or_is_said_to_have_no_effect() -> None:
    given = {
        "tensor_parallel_size": 2, "gpu_memory_utilization": 0.8, "max_model_len": 1024, "dtype": "bfloat16",
        "download_dir": "d", "max_num_batched_tokens": 512, "max_cudagraph_capture_size": 8, "enable_mm_embeds": True,
        "limit_mm_per_prompt": {"image": 1}, "quantization": "fp8", "kv_cache_dtype": "fp8", "enforce_eager": True,
        "hf_token": "t", "tokenizer_revision": "r", "revision": "v", "cpu_offload_gb": 1.0, "swap_space": 4.0,
        "trust_remote_code": True, "seed": 7, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5,
        "env_vars": {"A": "b"}, "convert": "none", "release_after_run": True,
    }  # fmt: skip
    assert set(given) == set(VllmSpec.model_fields)
    found, said = build(given)
    assert found.pop("hf_overrides") == {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    assert said == ["model.vllm.swap_space has no effect: this version of vLLM does not support it."]
    elsewhere = {"rope_scaling", "rope_theta", "env_vars", "swap_space", "trust_remote_code", "release_after_run"}
    assert {name: found[name] for name in given.keys() - elsewhere} == {
        name: given[name] for name in given.keys() - elsewhere
    }


def test_layers_are_shared_by_the_gpus_that_are_there() -> None:
    assert build({})[0]["tensor_parallel_size"] == 4
    found, said = build({"tensor_parallel_size": 8})
    assert found["tensor_parallel_size"] == 4
    assert "lowered to 4" in said[0]
    assert build({}, Machine(0, (0.5,)))[0]["tensor_parallel_size"] == 1


def test_memory_that_others_hold_is_left_to_them() -> None:
    assert utilization(0.9, [1.0, 0.96]) == (0.9, None)
    share, why = utilization(0.9, [1.0, 0.5])
    assert share == pytest.approx(0.45)
    assert why is not None
    with pytest.raises(MachineError, match="12%"):
        utilization(0.9, [0.12])
    # The main memory is everybody's: half of what is free, unless more is asked for.
    assert build({}, Machine(0, (0.6,)))[0]["gpu_memory_utilization"] == pytest.approx(0.3)


def test_adapters_get_a_rank_that_vllm_has() -> None:
    found, _ = build({}, ranks=(4, 20))
    assert (found["enable_lora"], found["max_lora_rank"], found["max_loras"]) == (True, 32, 2)
    with pytest.raises(InputError, match="rank 1024"):
        build({}, ranks=(1024,))


def test_how_answers_are_drawn_has_vllms_names() -> None:
    found = sampling_params(Sampling(top_k=-1, stop=("x",), bad_words=("y",), seed=3, n=2))
    assert (found["top_k"], found["stop"], found["bad_words"], found["repetition_penalty"]) == (0, ["x"], ["y"], 1.0)
    assert found["stop_token_ids"] is None
