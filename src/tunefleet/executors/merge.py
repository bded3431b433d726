"""`merge`: merges LoRA adapters into their base model, or with each other; `push`: publishes a model or an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tunefleet.errors import MachineError
from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.integrations.publishing.hub import has_token
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.merge_task import GGUF, QUANTIZE, GgufSpec
from tunefleet.spec.tasks.push_task import HUB, HUB_CLIENT
from tunefleet.workloads.merging import gguf

_NEEDED = ("torch", "transformers", "peft", "safetensors")
_DIRECT = GgufSpec(type="f16")
_QUANTIZED = GgufSpec(type="q4_k_m")
_KINDS = {"final_model": "model", "final_lora": "adapter"}
_CLIENT: Final = "huggingface_hub"
_BUCKETS: Final = "boto3"
_OFFLINE: Final = "HF_HUB_OFFLINE"
_YES: Final = frozenset({"1", "on", "true", "yes"})


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


class PushExecutor(JobExecutor):
    """Publishes files of another task; leaves only its result."""

    kind = "push"
    program = "tunefleet.workloads.publishing:main"

    def unavailable_reason(self) -> str | None:
        """Return which packages are missing: those of the Hub or those of buckets are enough."""
        reasons = [missing(each, extra=extra) for each, extra in ((_CLIENT, "train"), (_BUCKETS, "s3"))]
        return None if None in reasons else reasons[0]

    def features(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Return whether this machine can reach the Hub, and has a token for it."""
        client = missing(_CLIENT, extra="train", what="The packages for the Hub")
        if client is None and environment.get(_OFFLINE, "").lower() in _YES:
            client = f"{_OFFLINE} is set: unset it on the worker to allow connections to the Hub."
        token = None if has_token(environment) else "HF_TOKEN is not set: start the worker with a token that may write."
        return {HUB_CLIENT: client, HUB: client or token}

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: the files are those of another task."""
        del folder
        return []
