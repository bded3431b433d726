"""The agent: its jobs, GPUs and limits; used by the routes and the poller."""

from __future__ import annotations

import json
import logging
import math
import struct
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.agent import views
from tunefleet.agent.gpus import Gpus
from tunefleet.agent.jobs.job import AgentRecord
from tunefleet.agent.jobs.job_queue import JobTable
from tunefleet.agent.translate import Defaults
from tunefleet.errors import InputError
from tunefleet.runtime import envs
from tunefleet.runtime.monitor.system import SystemReader
from tunefleet.settings import AgentSettings
from tunefleet.spec import load_task_spec

GIB: Final = 1 << 30
# Bytes per parameter trained with AdamW: weight, gradient and two moments, in float32.
_FULL_BYTES: Final = 16.0
# Bits of the base weights -> bytes per frozen parameter, with the overhead of quantization.
_FROZEN_BYTES: Final = {4: 0.55, 8: 1.1, 16: 2.0}
# Bytes per parameter of the reference model of `dpo`, in half precision at least.
_REFERENCE_BYTES: Final = 2.0
# Limit of the safetensors format, so that a corrupt length does not make the agent read the whole file.
_MAX_HEADER: Final = 100 << 20
logger = logging.getLogger(__name__)


class Agent:
    """One agent."""

    def __init__(self, settings: AgentSettings, job_table: JobTable, gpus: Gpus) -> None:
        self.settings = settings
        self.job_table = job_table
        self.gpus = gpus
        self.system = SystemReader(settings.checkpoints_dir.expanduser())
        self.stopping = threading.Event()

    def open(self) -> None:
        """Read the GPUs, and resume the jobs of an earlier process."""
        self.gpus.start()
        self.job_table.open()

    def close(self) -> None:
        """Stop; jobs keep running."""
        self.stopping.set()
        self.job_table.close()
        self.gpus.stop()
        self.job_table.context.jobs.close()
        if self.job_table.context.spans is not None:
            self.job_table.context.spans.close()

    def defaults(self) -> Defaults:
        """Return the defaults that settings and machine add to a config."""
        settings = self.settings
        return Defaults(
            save_steps=settings.checkpoint_interval_steps,
            logging_steps=settings.metrics_interval_steps,
            mixed_precision=settings.mixed_precision,
            gpu=self.gpus.info()["device_count"] > 0,
            bf16=self.gpus.has_bf16,
            allow_code=settings.allow_code,
        )

    def admit(self, record: AgentRecord) -> None:
        """Reject a job that can never run here."""
        refuse_unready(load_task_spec(record.spec).environments)
        admit(record.spec, self.gpus.limit_bytes(), self.settings.gpu_memory_fraction)

    def status(self, job_id: str) -> views.JobStatusView:
        """Return the status of a job."""
        job = self.job_table.find(job_id)
        waiting = [other.job_id for other in self.job_table.queue()]
        position = waiting.index(job_id) + 1 if job_id in waiting else None
        gpus = job.handle.job.gpus if job.handle is not None else ()
        return views.status(job, position=position, load=self.gpus.load(gpus[0]) if gpus else None)


def admit(spec: Mapping[str, Any], limit_bytes: int | None, fraction: float) -> None:
    """Reject a job that needs more GPU memory than allowed.

    Args:
        limit_bytes: GPU memory limit of a job; None without a GPU.
    """
    needed = needed_bytes(spec)
    if limit_bytes is not None and needed is not None and needed > limit_bytes:
        raise InputError(
            f"The job needs at least {needed / GIB:.1f} GiB of GPU memory, and "
            f"TUNEFLEET_MAX_GPU_MEMORY_FRACTION={fraction:g} allows {limit_bytes / GIB:.1f} GiB.",
            hint="Train with LoRA or 4-bit quantization, use a smaller model, or raise "
            "TUNEFLEET_MAX_GPU_MEMORY_FRACTION.",
        )


def refuse_unready(environments: Iterable[str]) -> None:
    """Reject a job whose environment is not ready on this machine.

    Args:
        environments: The environments that the job needs, such as that of its trainer.
    """
    for name in environments:
        reason = envs.reason(name)
        if reason is not None:
            raise InputError(reason, hint="Without `framework` or `trainer`, the agent trains with trl.")


def needed_bytes(spec: Mapping[str, Any]) -> int | None:
    """Return the memory of weights, gradients and optimizer without activations; None if the model is not local."""
    name = ((spec.get("model") or {}).get("source") or {}).get("identifier")
    folder = Path(str(name)).expanduser()
    if not folder.is_absolute() or not folder.is_dir():
        return None
    count = parameter_count(folder)
    if count is None:
        return None
    if spec.get("taskType") != "lora_sft" and spec.get("lora") is None:
        return int(count * (_FULL_BYTES + (_REFERENCE_BYTES if _holds_reference(spec) else 0)))
    quantization = spec.get("quantization") or {}
    bits = 4 if quantization.get("load_in_4bit") else 8 if quantization.get("load_in_8bit") else 16
    return int(count * _FROZEN_BYTES[bits])


def _holds_reference(spec: Mapping[str, Any]) -> bool:
    """Whether a reference model is in memory, too."""
    early = (spec.get("training") or {}).get("precompute_ref_log_probs")
    return spec.get("taskType") == "dpo" and not early


def parameter_count(folder: Path) -> int | None:
    """Return the number of parameters in the safetensors files of a model folder; None if there are none."""
    count = 0
    for file in folder.glob("*.safetensors"):
        try:
            with file.open("rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(min(size, _MAX_HEADER)))
        except (OSError, ValueError, struct.error) as error:
            logger.debug("Could not read %s: %s", file, error)
            return None
        count += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return count or None
