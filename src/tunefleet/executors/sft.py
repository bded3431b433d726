"""Base of all training kinds, and `sft` and `lora_sft`: supervised fine-tuning of all weights or of an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.control import TRAINING_COMMANDS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec import load_task_spec
from tunefleet.spec.options.trainer import OURS, feature_of
from tunefleet.workloads.external_trainers import trainers

NEEDED: Final = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


# The program for third-party trainers (`spec.trainer`).
OTHERS: Final = "tunefleet.workloads.external_trainers:main"


def _ours(spec: Mapping[str, Any]) -> bool:
    return spec.get("trainer") in {None, OURS}


class TrainingExecutor(JobExecutor):
    """Trains a model in separate processes; leaves a model or an adapter."""

    products: ClassVar[tuple[tuple[str, str], ...]] = (("final_model", "model"), ("final_lora", "adapter"))
    """Output folders of the program, and the artifact kind of each."""
    supported_commands = TRAINING_COMMANDS

    def unavailable_reason(self) -> str | None:
        """Return which training libraries are missing."""
        return missing(*NEEDED, extra="train", what="The training libraries")

    def program_of(self, spec: Mapping[str, Any]) -> str:
        """Return the training program: the built-in one, or the launcher of a third-party trainer."""
        return self.program if _ours(spec) else OTHERS

    def processes(self, spec: Mapping[str, Any], gpus: int) -> int:
        """Return the number of ranks: the value in the spec, else one per GPU."""
        # Third-party trainers start their ranks themselves.
        return load_task_spec(spec).processes_on(gpus) if _ours(spec) else 1

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the trained folder."""
        folders = ((name, kind, folder.root / name) for name, kind in self.products)
        return [Output(name=name, kind=kind, path=path) for name, kind, path in folders if path.is_dir()]


class SftExecutor(TrainingExecutor):
    """Full fine-tuning; leaves a model."""

    kind = "sft"
    program = "tunefleet.workloads.training:main"
    products = (("final_model", "model"),)

    def features(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Return the trainers of other packages."""
        del environment  # entry points do not depend on it
        return {feature_of(name): None for name in trainers.trainer_plugins()}


class LoraSftExecutor(SftExecutor):
    """LoRA fine-tuning; leaves an adapter."""

    kind = "lora_sft"
    products = (("final_lora", "adapter"),)
