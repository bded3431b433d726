"""`merge`: merges LoRA adapters into their base model, or with each other."""

from __future__ import annotations

from collections.abc import Mapping

from tunefleet.errors import MachineError
from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.merge_task import GGUF, QUANTIZE, GgufSpec
from tunefleet.workloads.merging import gguf

_NEEDED = ("torch", "transformers", "peft", "safetensors")
_DIRECT = GgufSpec(type="f16")
_QUANTIZED = GgufSpec(type="q4_k_m")
_KINDS = {"final_model": "model", "final_lora": "adapter"}


class MergeExecutor(JobExecutor):
    """Merges adapters; leaves a model, an adapter, a GGUF file."""

    kind = "merge"
    program = "tunefleet.workloads.merging:main"

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing(*_NEEDED, extra="train", what="The training libraries")

    def features(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Return whether this machine can write GGUF files, and types that need a separate quantization."""
        return {GGUF: _lacking(_DIRECT, environment), QUANTIZE: _lacking(_QUANTIZED, environment)}

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the merged folder, and the GGUF file if there is one."""
        found = [
            Output(name=name, kind=kind, path=folder.root / name)
            for name, kind in _KINDS.items()
            if (folder.root / name).is_dir()
        ]
        return found + [Output(name=path.name, kind="gguf", path=path) for path in sorted(folder.root.glob("*.gguf"))]


def _lacking(wanted: GgufSpec, environment: Mapping[str, str]) -> str | None:
    try:
        gguf.find(wanted, environment)
    except MachineError as error:
        return str(error)
    return None
