"""`sft` and `lora_sft`: supervised fine-tuning, of all weights or of a LoRA adapter."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.spec import load_task_spec
from tunefleet.wire.jobfolder import Job, JobFolder
from tunefleet.wire.link import Offer

_NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


class SftExecutor(JobExecutor):
    """Full fine-tuning; leaves a model."""

    kind = "sft"
    output: ClassVar[tuple[str, str]] = ("final_model", "model")
    """Folder that the program leaves, and the kind of artifact that it becomes."""

    def unavailable_reason(self) -> str | None:
        """Name the training libraries that are missing, without importing those that are there."""
        missing = [name for name in _NEEDED if find_spec(name) is None]
        if not missing:
            return None
        return (
            f"The training libraries are not installed ({', '.join(missing)} missing): pip install 'tunefleet[train]'."
        )

    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str]) -> Job:
        """Return the job of the training program."""
        return Job(
            job_id=offer.task_id,
            task_id=offer.task_id,
            attempt=offer.attempt,
            launch=launch,
            kind=offer.kind,
            name=offer.name,
            program="tunefleet.programs.train:main",
            spec=offer.spec,
            inputs=dict(inputs),
            processes=load_task_spec(offer.spec).processes,
        )

    def processes(self, spec: Mapping[str, Any], gpus: int) -> int:
        """Return how many ranks the training has: what its spec says, else one for each GPU."""
        return load_task_spec(spec).processes_on(gpus)

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the trained folder."""
        name, kind = self.output
        path = folder.root / name
        return [Output(name=name, kind=kind, path=path)] if path.is_dir() else []


class LoraSftExecutor(SftExecutor):
    """LoRA fine-tuning; leaves an adapter."""

    kind = "lora_sft"
    output: ClassVar[tuple[str, str]] = ("final_lora", "adapter")
