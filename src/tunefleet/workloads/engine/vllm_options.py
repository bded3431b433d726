"""Translates the options of a spec to vLLM's; pure functions, testable without vLLM."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.errors import InputError, MachineError
from tunefleet.workloads.engine.protocol import EngineModel, Sampling

UTILIZATION: Final = 0.9
# Fraction of a GPU's memory that stays free besides what other processes use.
_MARGIN: Final = 0.05
_MIN_UTILIZATION: Final = 0.1
# Ranks that vLLM has kernels for.
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Adapters on the GPU at the same time; vLLM swaps the others in from main memory.
_MAX_LORAS: Final = 8
MAX_LOGPROBS: Final = 100
# Options that are passed to vLLM unchanged.
_PASSED_ON: Final = (
    "max_model_len",
    "dtype",
    "download_dir",
    "max_num_batched_tokens",
    "max_cudagraph_capture_size",
    "enable_mm_embeds",
    "limit_mm_per_prompt",
    "quantization",
    "kv_cache_dtype",
    "enforce_eager",
    "convert",
    "hf_token",
    "tokenizer_revision",
    "cpu_offload_gb",
    "swap_space",
    "seed",
)
# Options that are handled elsewhere.
_HANDLED: Final = frozenset(
    {"tensor_parallel_size", "gpu_memory_utilization", "rope_scaling", "rope_theta", "env_vars", "revision"}
    | {"trust_remote_code", "device_map", "release_after_run"}
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of the engine: number of GPUs, and the free fraction of memory of each."""

    gpus: int = 0
    free: Sequence[float] = ()


def engine_args(
    model: EngineModel, path: str, machine: Machine, *, known: Collection[str], ranks: Sequence[int]
) -> tuple[dict[str, Any], list[str]]:
    """Return vLLM's arguments, and messages for the user about changed or ignored options."""
    options, messages = model.options, []
    found: dict[str, Any] = {"model": path, "trust_remote_code": model.trust_remote_code, "disable_log_stats": True}
    found |= {"max_logprobs": MAX_LOGPROBS, "revision": model.revision or options.get("revision")}
    found |= {name: options[name] for name in _PASSED_ON if options.get(name) is not None}
    found["tensor_parallel_size"] = parallel(options.get("tensor_parallel_size"), machine.gpus)
    asked = options.get("tensor_parallel_size") or 1
    if asked > found["tensor_parallel_size"]:
        messages.append(f"tensor_parallel_size: {asked} is lowered to {found['tensor_parallel_size']}: no more GPUs.")
    if machine.free:
        # On a CPU it is a fraction of main memory, which other processes need as well.
        default = UTILIZATION if machine.gpus else round(min(machine.free) / 2, 3)
        share, why = utilization(float(options.get("gpu_memory_utilization") or default), machine.free)
        found["gpu_memory_utilization"] = share
        messages += [why] if why else []
    rope = _rope(options)
    if rope:
        found["hf_overrides"] = {"rope_parameters": rope}
    if ranks:
        loaded = min(len(ranks), _MAX_LORAS)
        found |= {"enable_lora": True, "max_lora_rank": _rank(max(ranks)), "max_loras": loaded}
        found["max_cpu_loras"] = max(loaded, len(ranks))
    for name in sorted((found.keys() - known) | (options.keys() - set(_PASSED_ON) - _HANDLED)):
        found.pop(name, None)
        messages.append(f"model.vllm.{name} has no effect: this version of vLLM does not support it.")
    return {name: value for name, value in found.items() if value is not None}, messages


def parallel(asked: int | None, gpus: int) -> int:
    """Return the tensor parallel size: the requested one or all GPUs, never more than there are."""
    return max(1, gpus if asked is None else min(asked, max(1, gpus)))


def utilization(asked: float, free: Sequence[float]) -> tuple[float, str | None]:
    """Return the fraction of GPU memory for the engine, and a message if it is less than requested."""
    most = min(free, default=1.0) - _MARGIN
    if most >= asked:
        return asked, None
    if most < _MIN_UTILIZATION:
        raise MachineError(
            f"Only {min(free):.0%} of the memory is free.", hint="Stop the other processes, or wait until they end."
        )
    share = round(most, 3)
    return share, f"gpu_memory_utilization: {asked} is lowered to {share}: other processes use the rest of the memory."


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """Return the arguments of vLLM's `SamplingParams`; the caller adds the schema, whose class needs vLLM."""
    return {
        "n": sampling.n,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(0, sampling.top_k or 0),
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "bad_words": list(sampling.bad_words) or None,
        "seed": sampling.seed,
        "skip_special_tokens": sampling.skip_special_tokens,
        "logprobs": sampling.logprobs,
    }


def _rope(options: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(options.get("rope_scaling") or {})
    if "type" in found and "rope_type" not in found:
        found["rope_type"] = found.pop("type")
    if options.get("rope_theta") is not None:
        found["rope_theta"] = options["rope_theta"]
    return {"rope_type": "default", **found} if found else {}


def _rank(rank: int) -> int:
    for known in _RANKS:
        if rank <= known:
            return known
    raise InputError(f"An adapter has rank {rank}, but vLLM supports at most {_RANKS[-1]}.", hint="Use apply: merge.")
