"""All task kinds."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.spec.base_task import BaseTaskSpec
from tunefleet.spec.prompting import ApiTaskSpec, EchoSpec, EmbeddingTaskSpec, InferenceTaskSpec, RagTaskSpec
from tunefleet.spec.python_task import PythonTaskSpec
from tunefleet.spec.together import Faults
from tunefleet.spec.trainings import DpoSpec, LoraSftSpec, ModelTrainingSpec, PpoSpec, SftSpec, TrainingTaskSpec

__all__ = [
    "TASK_KINDS",
    "ApiTaskSpec",
    "BaseTaskSpec",
    "DpoSpec",
    "EchoSpec",
    "EmbeddingTaskSpec",
    "InferenceTaskSpec",
    "LoraSftSpec",
    "ModelTrainingSpec",
    "PpoSpec",
    "PythonTaskSpec",
    "RagTaskSpec",
    "SftSpec",
    "TaskSpec",
    "TrainingTaskSpec",
    "across",
]

TaskSpec = (
    SftSpec
    | LoraSftSpec
    | DpoSpec
    | PpoSpec
    | InferenceTaskSpec
    | EmbeddingTaskSpec
    | RagTaskSpec
    | ApiTaskSpec
    | PythonTaskSpec
    | EchoSpec
)

TASK_KINDS: Final[dict[str, type[TaskSpec]]] = {
    "sft": SftSpec,
    "lora_sft": LoraSftSpec,
    "dpo": DpoSpec,
    "ppo": PpoSpec,
    "inference": InferenceTaskSpec,
    "embedding": EmbeddingTaskSpec,
    "rag": RagTaskSpec,
    "api": ApiTaskSpec,
    "python": PythonTaskSpec,
    "echo": EchoSpec,
}


def across(kind: type[BaseTaskSpec], blocks: dict[str, Any]) -> Faults:
    """Find faults between blocks; see `BaseTaskSpec.faults`."""
    return kind.faults(blocks)
