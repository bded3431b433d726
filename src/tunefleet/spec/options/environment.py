"""Environment variables and secrets in a spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from tunefleet.spec.base import Text, wrong

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"\$\{secret:[^{}]+\}")
_MAX_VARIABLES: Final = 100
# Variables that only tune an engine. Any other may name files, plug-ins, modules or hosts, now or in a later version.
_TUNING_VARIABLES: Final = frozenset({
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "MKL_NUM_THREADS", "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM", "NCCL_ALGO", "NCCL_BUFFSIZE",
    "NCCL_CUMEM_ENABLE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_IB_DISABLE", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO",
    "NCCL_SHM_DISABLE", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ATTENTION_BACKEND", "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_DISABLE_COMPILE_CACHE",
    "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_FLASH_ATTN_VERSION",
    "VLLM_FUSED_MOE_CHUNK_SIZE", "VLLM_LOGGING_LEVEL", "VLLM_LOG_STATS_INTERVAL", "VLLM_NO_USAGE_STATS",
    "VLLM_DO_NOT_TRACK", "VLLM_SKIP_P2P_CHECK", "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_USE_DEEP_GEMM",
    "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_USE_TRITON_FLASH_ATTN", "VLLM_USE_V1", "VLLM_WORKER_MULTIPROC_METHOD",
})  # fmt: skip
# No slash and no `..`: even a tuning variable must not name a path.
_PLAIN: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.,:=+-]{0,200}")
# GPU assignment and preloaded libraries are the worker's: a task could otherwise use the GPUs of another one.
_RESERVED: Final = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"})


def _variables(value: dict[str, str]) -> dict[str, str]:
    if len(value) > _MAX_VARIABLES:
        raise wrong(f"has {len(value)} variables; at most {_MAX_VARIABLES} are allowed")
    for name, text in value.items():
        # The operating system does not allow NUL in environment variables.
        if not _VARIABLE.fullmatch(name) or "\0" in text:
            raise wrong("is not a valid variable name", "use letters, digits and _, such as MY_OPTION", at=name)
        if name in _RESERVED:
            raise wrong("is set by the worker", "request GPUs in resources.hardware.gpu", at=name)
    return value


def runs_code(variables: Mapping[str, str]) -> bool:
    """Whether variables may do more than tune a process: name files, plug-ins, hosts or modules.

    Args:
        variables: Name → value, for a process that otherwise runs no custom code.
    """
    return any(name not in _TUNING_VARIABLES or not _PLAIN.fullmatch(text) for name, text in variables.items())


def _as_texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _as_text(text) for name, text in value.items()}


def _as_text(value: Any) -> Any:
    # YAML's `true` becomes "true", not Python's "True".
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _only_a_secret(value: str) -> str:
    if not _SECRET.fullmatch(value):
        raise wrong("would be visible to everyone who can see the run", "write ${secret:NAME}")
    return value


# Environment variables; numbers and booleans become strings.
Variables = Annotated[dict[str, str], BeforeValidator(_as_texts), AfterValidator(_variables)]
# `${secret:NAME}`; the worker resolves it.
Secret = Annotated[Text, AfterValidator(_only_a_secret)]
