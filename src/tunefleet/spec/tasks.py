"""All task kinds."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.spec.alignments import AlignmentTaskSpec, DpoSpec, GrpoSpec, KtoSpec, OrpoSpec, RewardSpec, RlooSpec
from tunefleet.spec.base_task import BaseTaskSpec
from tunefleet.spec.chat import ChatTaskSpec
from tunefleet.spec.command import CommandSpec
from tunefleet.spec.cross_field_checks import Faults
from tunefleet.spec.data_task import DataTaskSpec
from tunefleet.spec.evaluate_task import EvaluateTaskSpec
from tunefleet.spec.item_tasks import ApiTaskSpec, EchoSpec, InferenceTaskSpec
from tunefleet.spec.merging import MergeTaskSpec
from tunefleet.spec.python_task import PythonTaskSpec
from tunefleet.spec.retrieval import EmbeddingTaskSpec, RagIndexTaskSpec, RagTaskSpec
from tunefleet.spec.trainings import LoraSftSpec, ModelTrainingSpec, PpoSpec, SftSpec, TrainingTaskSpec
from tunefleet.spec.verify_task import VerifyTaskSpec

__all__ = [
    "TASK_KINDS",
    "AlignmentTaskSpec",
    "ApiTaskSpec",
    "BaseTaskSpec",
    "ChatTaskSpec",
    "CommandSpec",
    "DataTaskSpec",
    "DpoSpec",
    "EchoSpec",
    "EmbeddingTaskSpec",
    "EvaluateTaskSpec",
    "GrpoSpec",
    "InferenceTaskSpec",
    "KtoSpec",
    "LoraSftSpec",
    "MergeTaskSpec",
    "ModelTrainingSpec",
    "OrpoSpec",
    "PpoSpec",
    "PythonTaskSpec",
    "RagIndexTaskSpec",
    "RagTaskSpec",
    "RewardSpec",
    "RlooSpec",
    "SftSpec",
    "TaskSpec",
    "TrainingTaskSpec",
    "VerifyTaskSpec",
    "across",
]

TaskSpec = (
    SftSpec
    | LoraSftSpec
    | DpoSpec
    | KtoSpec
    | OrpoSpec
    | RewardSpec
    | GrpoSpec
    | RlooSpec
    | PpoSpec
    | InferenceTaskSpec
    | ChatTaskSpec
    | EmbeddingTaskSpec
    | RagTaskSpec
    | RagIndexTaskSpec
    | MergeTaskSpec
    | EvaluateTaskSpec
    | VerifyTaskSpec
    | ApiTaskSpec
    | DataTaskSpec
    | PythonTaskSpec
    | CommandSpec
    | EchoSpec
)

TASK_KINDS: Final[dict[str, type[TaskSpec]]] = {
    "sft": SftSpec,
    "lora_sft": LoraSftSpec,
    "dpo": DpoSpec,
    "kto": KtoSpec,
    "orpo": OrpoSpec,
    "reward": RewardSpec,
    "grpo": GrpoSpec,
    "rloo": RlooSpec,
    "ppo": PpoSpec,
    "inference": InferenceTaskSpec,
    "chat": ChatTaskSpec,
    "embedding": EmbeddingTaskSpec,
    "rag": RagTaskSpec,
    "rag_index": RagIndexTaskSpec,
    "merge": MergeTaskSpec,
    "evaluate": EvaluateTaskSpec,
    "verify": VerifyTaskSpec,
    "api": ApiTaskSpec,
    "data": DataTaskSpec,
    "python": PythonTaskSpec,
    "command": CommandSpec,
    "echo": EchoSpec,
}


def across(kind: type[BaseTaskSpec], blocks: dict[str, Any]) -> Faults:
    """Find faults between blocks; see `BaseTaskSpec.faults`."""
    return kind.faults(blocks)
