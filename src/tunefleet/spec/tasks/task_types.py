"""All task types."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.spec.tasks.base_task import BaseTaskSpec
from tunefleet.spec.tasks.command import CommandSpec, PythonTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.data_task import DataTaskSpec
from tunefleet.spec.tasks.evaluate_task import EvaluateTaskSpec
from tunefleet.spec.tasks.item_tasks import ApiTaskSpec, ChatTaskSpec, EchoSpec, InferenceTaskSpec
from tunefleet.spec.tasks.merge_task import MergeTaskSpec
from tunefleet.spec.tasks.preference_tasks import (
    AlignmentTaskSpec,
    DpoSpec,
    GrpoSpec,
    KtoSpec,
    OrpoSpec,
    RewardSpec,
    RlooSpec,
)
from tunefleet.spec.tasks.push_task import PushTaskSpec
from tunefleet.spec.tasks.retrieval import EmbeddingTaskSpec, RagIndexTaskSpec, RagTaskSpec
from tunefleet.spec.tasks.serve_task import ServeTaskSpec
from tunefleet.spec.tasks.training_tasks import (
    LoraSftSpec,
    ModelTrainingSpec,
    PpoSpec,
    SftSpec,
    TrainingTaskSpec,
)
from tunefleet.spec.tasks.verify_task import VerifyTaskSpec

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
    "PushTaskSpec",
    "PythonTaskSpec",
    "RagIndexTaskSpec",
    "RagTaskSpec",
    "RewardSpec",
    "RlooSpec",
    "ServeTaskSpec",
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
    | ServeTaskSpec
    | EmbeddingTaskSpec
    | RagTaskSpec
    | RagIndexTaskSpec
    | MergeTaskSpec
    | EvaluateTaskSpec
    | VerifyTaskSpec
    | PushTaskSpec
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
    "serve": ServeTaskSpec,
    "embedding": EmbeddingTaskSpec,
    "rag": RagTaskSpec,
    "rag_index": RagIndexTaskSpec,
    "merge": MergeTaskSpec,
    "evaluate": EvaluateTaskSpec,
    "verify": VerifyTaskSpec,
    "push": PushTaskSpec,
    "api": ApiTaskSpec,
    "data": DataTaskSpec,
    "python": PythonTaskSpec,
    "command": CommandSpec,
    "echo": EchoSpec,
}


def across(kind: type[BaseTaskSpec], blocks: dict[str, Any]) -> Faults:
    """Find errors across blocks; see `BaseTaskSpec.faults`."""
    return kind.faults(blocks)
