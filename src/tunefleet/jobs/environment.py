"""The environment of a trainer process, and which of its variables a forked process would come too late for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_READ_AT_IMPORT = (
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_",
    "PYTHON", "LD_", "BNB_", "BITSANDBYTES_", "ACCELERATE_", "XDG_", "MKL_", "OPENBLAS_", "KMP_", "USE_",
)  # fmt: skip
_READ_AT_IMPORT_EXACT = frozenset({"HOME", "PATH", "TMPDIR", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_MODULE_LOADING"})

SERVER_ENV = {
    # One thread: a pool that was used before a fork leaves the child waiting for threads that it does not have.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Asks the driver through NVML whether there are GPUs, which opens no CUDA context.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""What the fork server has on top of the jobs' environment while it imports."""


def job_environment(base: Mapping[str, str], job: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a job's trainer.

    Args:
        base: The supervisor's environment for jobs; holds no secret.
        job: `job.json`.
    """
    gpus: Sequence[str] = job.get("gpus") or ()
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return {**base, **devices, **(job.get("env") or {})}


def needs_cold_start(base: Mapping[str, str], job: Mapping[str, Any]) -> str | None:
    """Return why a job must be started in a fresh interpreter, or None if it can be forked."""
    if int(job.get("processes") or 1) > 1:
        return "it has several processes"
    for name, value in (job.get("env") or {}).items():
        if base.get(name) != value and (name in _READ_AT_IMPORT_EXACT or name.startswith(_READ_AT_IMPORT)):
            return f"it sets {name}, which is read at import"
    return None
