"""The environment of a trainer process, and the variables that require a fresh interpreter."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Variables that libraries read at import: a forked process has passed that point.
_READ_AT_IMPORT = (
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_",
    "PYTHON", "LD_", "BNB_", "BITSANDBYTES_", "ACCELERATE_", "XDG_", "MKL_", "OPENBLAS_", "KMP_", "USE_",
)  # fmt: skip
_READ_AT_IMPORT_EXACT = frozenset({"HOME", "PATH", "TMPDIR", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_MODULE_LOADING"})

_OF_ONE_PROCESS = (
    "TUNEFLEET_", "ORCHESTRATOR_", "NEBULA_", "WORKER_", "HOST_APP_", "ELASTIC_AUTO_", "SCHEDULER_", "PYTEST_",
)  # fmt: skip
_OF_ONE_PROCESS_EXACT = frozenset({
    # of Tunefleet's own processes
    "RESULTS_DIR", "TASK_TOPIC", "HEARTBEAT_INTERVAL_SEC", "LOG_FILE", "LOG_LEVEL", "PORT", "PUBLIC_BASE_URL",
    "ENABLE_CONTEXT_REUSE", "ENABLE_ELASTIC_SCALING", "ENABLE_STAGE_WEIGHT_STICKINESS", "ENABLE_TASK_MERGE",
    "REDIS_URL", "TASK_MERGE_MAX_BATCH_SIZE",
    # of an agent
    "AGENT_ID", "BACKEND_URL", "CHECKPOINTS_DIR", "CHECKPOINT_INTERVAL_STEPS", "DATASETS_DIR", "LOGS_DIR",
    "MAX_CONCURRENT_JOBS", "METRICS_REPORT_INTERVAL_STEPS", "MODELS_DIR", "POLL_ENABLED", "POLL_INTERVAL_SECONDS",
    "GPU_MONITORING_INTERVAL_SECONDS", "HEARTBEAT_INTERVAL_SECONDS",
    # of the shell or service manager that started it
    "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID",
})  # fmt: skip

# CPU quota of a container (cgroup v2).
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# Defaults for jobs, unless the environment of their worker or agent sets these variables.
BRIEF_SPIN = {
    # OpenMP threads that spin while waiting take the core from the thread they wait for if the machine is busy; threads
    # that sleep immediately wake up late. A brief spin is nearly as fast as a long one on an idle machine, and nearly
    # as fast as none on a busy one (docs/decisions/044-waiting-threads-spin-briefly.md).
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",
}

# Additional environment of the fork server during its imports.
SERVER_ENV = {
    # One thread: after a fork, a child would wait for the threads of a used pool, which it does not have.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # pyarrow's bundled jemalloc would start a thread when it is loaded, even though pyarrow does not use it.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # Detects GPUs through NVML, which opens no CUDA context.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def job_environment(base: Mapping[str, str], job: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a job's trainer."""
    return {**base, **(job.get("env") or {}), **_devices(job), **_interpreter(base, job)}


def at_import(base: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that may affect imports, without variables of a single Tunefleet process."""
    # Jobs with equal results can be forked from the same server.
    return {
        name: value
        for name, value in base.items()
        if name not in _OF_ONE_PROCESS_EXACT and not name.startswith(_OF_ONE_PROCESS)
    }


def thread_count(environment: Mapping[str, str]) -> int:
    """Return the number of CPU threads for torch: from the environment, else the cores of this process."""
    given = environment.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else core_count()


def core_count() -> int:
    """Return the number of cores available to this process, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def needs_cold_start(base: Mapping[str, str], job: Mapping[str, Any]) -> str | None:
    """Return why a job needs a fresh interpreter, or None if it can be forked."""
    if int(job.get("processes") or 1) > 1 or job.get("gang"):
        return "it has several processes"
    if job.get("python"):
        return "it runs in a separate environment"
    for name, value in (job.get("env") or {}).items():
        if base.get(name) != value and (name in _READ_AT_IMPORT_EXACT or name.startswith(_READ_AT_IMPORT)):
            return f"it sets {name}, which is read at import"
    return None


def _interpreter(base: Mapping[str, str], job: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that activate the virtual environment of a job."""
    if not job.get("python"):
        return {}
    programs = Path(job["python"]).parent
    path = (job.get("env") or {}).get("PATH") or base.get("PATH") or os.defpath
    return {"VIRTUAL_ENV": str(programs.parent), "PATH": f"{programs}{os.pathsep}{path}"}


def _devices(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable that restricts a job to its GPUs: allocated ones, none if its spec needs none, else unset."""
    gpus: Sequence[str] = job.get("gpus") or ()
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    spec: Any = job.get("spec") or {}
    block = spec
    for name in ("resources", "hardware", "gpu"):
        block = block.get(name) if isinstance(block, Mapping) else None
    unwanted = (isinstance(block, Mapping) and block.get("count") == 0) or spec.get("enforce_cpu") is True
    return {"CUDA_VISIBLE_DEVICES": ""} if unwanted else {}
