"""Workflow files → frozen pydantic models; unknown keys are rejected.

Turns text into models, and errors into messages with line and column. Touches no disk, no network and no training
library; whether a path, a dataset or a model exists is checked elsewhere.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tunefleet.spec.base import BUILTIN_PREFIX
    from tunefleet.spec.documents.nodes import TaskNode
    from tunefleet.spec.documents.overrides import deep_set, override_document, parse_value
    from tunefleet.spec.documents.paths import Fetch, LocalPath, fetches, local_paths
    from tunefleet.spec.documents.schema import json_schema
    from tunefleet.spec.documents.workflow import Workflow, dump_task_spec, load_task_spec, parse_workflow
    from tunefleet.spec.expressions.lookup import ConditionSpec, unmet
    from tunefleet.spec.expressions.references import fill_secrets, resolve, secrets_of
    from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec, CheckpointSpec
    from tunefleet.spec.options.data import JsonlSpec, TextShape, TrainingData
    from tunefleet.spec.options.devices import Parallelism
    from tunefleet.spec.options.generation import RewardModelSpec
    from tunefleet.spec.options.model import LoraSpec, ModelSource, ModelSpec, QuantizationSpec, TransformersSpec
    from tunefleet.spec.options.output import OutputSpec
    from tunefleet.spec.options.policy import EvaluateSpec, LimitsSpec, PredictionsSpec, RetrySpec, ShardSpec
    from tunefleet.spec.options.preference_data import LabelledData, PairData, PromptRows
    from tunefleet.spec.options.prompts import EchoData
    from tunefleet.spec.options.resources import GpuSpec, HardwareSpec, ResourcesSpec, format_memory, parse_memory
    from tunefleet.spec.options.rows import DataSource, EvalSpec, RowsSpec
    from tunefleet.spec.options.training_options import (
        CommonTrainingSpec,
        EarlyStoppingSpec,
        LoraTrainingSpec,
        TrainingSpec,
    )
    from tunefleet.spec.tasks.base_task import Devices, SplittableTaskSpec, asked_shards
    from tunefleet.spec.tasks.federated_training import FederatedTrainingSpec, SplitSpec
    from tunefleet.spec.tasks.task_types import (
        TASK_KINDS,
        AlignmentTaskSpec,
        ApiTaskSpec,
        BaseTaskSpec,
        ChatTaskSpec,
        CommandSpec,
        DataTaskSpec,
        DpoSpec,
        EchoSpec,
        EmbeddingTaskSpec,
        EvaluateTaskSpec,
        GrpoSpec,
        InferenceTaskSpec,
        KtoSpec,
        LoraSftSpec,
        MergeTaskSpec,
        ModelTrainingSpec,
        OrpoSpec,
        PpoSpec,
        PythonTaskSpec,
        RagIndexTaskSpec,
        RagTaskSpec,
        RewardSpec,
        RlooSpec,
        ServeTaskSpec,
        SftSpec,
        TaskSpec,
        TrainingTaskSpec,
    )
    from tunefleet.spec.tasks.training_tasks import FederableTaskSpec

__all__ = [
    "BUILTIN_PREFIX",
    "TASK_KINDS",
    "AlignmentTaskSpec",
    "ApiTaskSpec",
    "BaseTaskSpec",
    "ChatTaskSpec",
    "CheckpointLoadSpec",
    "CheckpointSpec",
    "CommandSpec",
    "CommonTrainingSpec",
    "ConditionSpec",
    "DataSource",
    "DataTaskSpec",
    "Devices",
    "DpoSpec",
    "EarlyStoppingSpec",
    "EchoData",
    "EchoSpec",
    "EmbeddingTaskSpec",
    "EvalSpec",
    "EvaluateSpec",
    "EvaluateTaskSpec",
    "FederableTaskSpec",
    "FederatedTrainingSpec",
    "Fetch",
    "GpuSpec",
    "GrpoSpec",
    "HardwareSpec",
    "InferenceTaskSpec",
    "JsonlSpec",
    "KtoSpec",
    "LabelledData",
    "LimitsSpec",
    "LocalPath",
    "LoraSftSpec",
    "LoraSpec",
    "LoraTrainingSpec",
    "MergeTaskSpec",
    "ModelSource",
    "ModelSpec",
    "ModelTrainingSpec",
    "OrpoSpec",
    "OutputSpec",
    "PairData",
    "Parallelism",
    "PpoSpec",
    "PredictionsSpec",
    "PromptRows",
    "PythonTaskSpec",
    "QuantizationSpec",
    "RagIndexTaskSpec",
    "RagTaskSpec",
    "ResourcesSpec",
    "RetrySpec",
    "RewardModelSpec",
    "RewardSpec",
    "RlooSpec",
    "RowsSpec",
    "ServeTaskSpec",
    "SftSpec",
    "ShardSpec",
    "SplitSpec",
    "SplittableTaskSpec",
    "TaskNode",
    "TaskSpec",
    "TextShape",
    "TrainingData",
    "TrainingSpec",
    "TrainingTaskSpec",
    "TransformersSpec",
    "Workflow",
    "asked_shards",
    "deep_set",
    "dump_task_spec",
    "fetches",
    "fill_secrets",
    "format_memory",
    "json_schema",
    "load_task_spec",
    "local_paths",
    "override_document",
    "parse_memory",
    "parse_value",
    "parse_workflow",
    "resolve",
    "secrets_of",
    "unmet",
]

_MODULES: Final = {
    name: module
    for module, names in {
        "tasks.base_task": "Devices SplittableTaskSpec asked_shards",
        "base": "BUILTIN_PREFIX",
        "options.checkpoint_storage": "CheckpointLoadSpec CheckpointSpec",
        "expressions.lookup": "ConditionSpec unmet",
        "options.data": "JsonlSpec TextShape TrainingData",
        "options.devices": "Parallelism",
        "documents.overrides": "deep_set override_document parse_value",
        "tasks.federated_training": "FederatedTrainingSpec SplitSpec",
        "options.generation": "RewardModelSpec",
        "options.model": "LoraSpec ModelSource ModelSpec QuantizationSpec TransformersSpec",
        "documents.nodes": "TaskNode",
        "options.output": "OutputSpec",
        "documents.paths": "Fetch LocalPath fetches local_paths",
        "options.policy": "EvaluateSpec LimitsSpec PredictionsSpec RetrySpec ShardSpec",
        "options.preference_data": "LabelledData PairData PromptRows",
        "options.prompts": "EchoData",
        "expressions.references": "fill_secrets resolve secrets_of",
        "options.resources": "GpuSpec HardwareSpec ResourcesSpec format_memory parse_memory",
        "options.rows": "DataSource EvalSpec RowsSpec",
        "documents.schema": "json_schema",
        "tasks.task_types": (
            "TASK_KINDS AlignmentTaskSpec ApiTaskSpec BaseTaskSpec ChatTaskSpec CommandSpec DataTaskSpec DpoSpec "
            "EchoSpec EmbeddingTaskSpec EvaluateTaskSpec GrpoSpec InferenceTaskSpec KtoSpec LoraSftSpec "
            "MergeTaskSpec ModelTrainingSpec OrpoSpec PpoSpec PythonTaskSpec RagIndexTaskSpec RagTaskSpec "
            "RewardSpec RlooSpec ServeTaskSpec SftSpec TaskSpec TrainingTaskSpec"
        ),
        "options.training_options": "CommonTrainingSpec EarlyStoppingSpec LoraTrainingSpec TrainingSpec",
        "tasks.training_tasks": "FederableTaskSpec",
        "documents.workflow": "Workflow dump_task_spec load_task_spec parse_workflow",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    # Lazy: listing tasks or reading one block must not wait for the import of every task type's models.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
