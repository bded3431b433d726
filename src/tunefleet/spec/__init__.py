"""What a user writes: workflow documents → frozen pydantic models; unknown keys are refused.

Turns text into models, and faults into sentences with line and column. Touches no disk, no network and no training
library; whether a path, a dataset or a model exists is found out elsewhere.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tunefleet.spec.adapter import LoraSpec, QuantizationSpec
    from tunefleet.spec.base_task import Devices, SplittableTaskSpec, asked_shards
    from tunefleet.spec.builtin import BUILTIN_PREFIX
    from tunefleet.spec.checkpoint import CheckpointLoadSpec, CheckpointSpec
    from tunefleet.spec.condition import ConditionSpec, unmet
    from tunefleet.spec.data import JsonlSpec, TextShape, TrainingData
    from tunefleet.spec.devices import Parallelism
    from tunefleet.spec.edit import deep_set, override_document, parse_value
    from tunefleet.spec.federated_training import FederatedTrainingSpec, SplitSpec
    from tunefleet.spec.generation import RewardModelSpec
    from tunefleet.spec.model import ModelSource, ModelSpec, TransformersSpec
    from tunefleet.spec.nodes import TaskNode
    from tunefleet.spec.output import OutputSpec
    from tunefleet.spec.paths import Fetch, LocalPath, fetches, local_paths
    from tunefleet.spec.policy import EvaluateSpec, LimitsSpec, PredictionsSpec, RetrySpec, ShardSpec
    from tunefleet.spec.preferred import AskedData, JudgedData, PairData
    from tunefleet.spec.prompts import EchoData
    from tunefleet.spec.references import fill_secrets, resolve, secrets_of
    from tunefleet.spec.resources import GpuSpec, HardwareSpec, ResourcesSpec, format_memory, parse_memory
    from tunefleet.spec.rows import DataSource, EvalSpec, RowsSpec
    from tunefleet.spec.schema import json_schema
    from tunefleet.spec.tasks import (
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
        SftSpec,
        TaskSpec,
        TrainingTaskSpec,
    )
    from tunefleet.spec.training import CommonTrainingSpec, EarlyStoppingSpec, LoraTrainingSpec, TrainingSpec
    from tunefleet.spec.trainings import FederableTaskSpec
    from tunefleet.spec.workflow import Workflow, dump_task_spec, load_task_spec, parse_workflow

__all__ = [
    "BUILTIN_PREFIX",
    "TASK_KINDS",
    "AlignmentTaskSpec",
    "ApiTaskSpec",
    "AskedData",
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
    "JudgedData",
    "KtoSpec",
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

_HOMES: Final = {
    name: module
    for module, names in {
        "adapter": "LoraSpec QuantizationSpec",
        "base_task": "Devices SplittableTaskSpec asked_shards",
        "builtin": "BUILTIN_PREFIX",
        "checkpoint": "CheckpointLoadSpec CheckpointSpec",
        "condition": "ConditionSpec unmet",
        "data": "JsonlSpec TextShape TrainingData",
        "devices": "Parallelism",
        "edit": "deep_set override_document parse_value",
        "federated_training": "FederatedTrainingSpec SplitSpec",
        "generation": "RewardModelSpec",
        "model": "ModelSource ModelSpec TransformersSpec",
        "nodes": "TaskNode",
        "output": "OutputSpec",
        "paths": "Fetch LocalPath fetches local_paths",
        "policy": "EvaluateSpec LimitsSpec PredictionsSpec RetrySpec ShardSpec",
        "preferred": "AskedData JudgedData PairData",
        "prompts": "EchoData",
        "references": "fill_secrets resolve secrets_of",
        "resources": "GpuSpec HardwareSpec ResourcesSpec format_memory parse_memory",
        "rows": "DataSource EvalSpec RowsSpec",
        "schema": "json_schema",
        "tasks": (
            "TASK_KINDS AlignmentTaskSpec ApiTaskSpec BaseTaskSpec ChatTaskSpec CommandSpec DataTaskSpec DpoSpec "
            "EchoSpec EmbeddingTaskSpec EvaluateTaskSpec GrpoSpec InferenceTaskSpec KtoSpec LoraSftSpec "
            "MergeTaskSpec ModelTrainingSpec OrpoSpec PpoSpec PythonTaskSpec RagIndexTaskSpec RagTaskSpec "
            "RewardSpec RlooSpec SftSpec TaskSpec TrainingTaskSpec"
        ),
        "training": "CommonTrainingSpec EarlyStoppingSpec LoraTrainingSpec TrainingSpec",
        "trainings": "FederableTaskSpec",
        "workflow": "Workflow dump_task_spec load_task_spec parse_workflow",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    # Lazy: who lists tasks, or reads one block of a document, does not wait for the models of every kind of task.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
