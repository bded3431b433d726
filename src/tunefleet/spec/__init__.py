"""What a user writes: workflow documents → frozen pydantic models; unknown keys are refused.

Turns text into models, and faults into sentences with line and column. Touches no disk, no network and no training
library; whether a path, a dataset or a model exists is found out elsewhere.
"""

from __future__ import annotations

from tunefleet.spec.adapter import LoraSpec, QuantizationSpec
from tunefleet.spec.condition import ConditionSpec, judge
from tunefleet.spec.data import DataSource, EvalSpec, JsonlSpec, TextShape, TrainingData
from tunefleet.spec.echo import EchoData
from tunefleet.spec.edit import deep_set, override_document, parse_value
from tunefleet.spec.model import ModelSource, ModelSpec, TransformersSpec
from tunefleet.spec.paths import BUILTIN_PREFIX, LocalPath, local_paths
from tunefleet.spec.policy import (
    CheckpointLoadSpec,
    CheckpointSpec,
    EvaluateSpec,
    LimitsSpec,
    OutputSpec,
    PredictionsSpec,
    RetrySpec,
)
from tunefleet.spec.references import fill_secrets, resolve, secrets_of
from tunefleet.spec.resources import GpuSpec, HardwareSpec, ResourcesSpec, format_memory, parse_memory
from tunefleet.spec.schema import json_schema
from tunefleet.spec.tasks import (
    TASK_KINDS,
    BaseTaskSpec,
    EchoSpec,
    LoraSftSpec,
    SftSpec,
    TaskSpec,
    TrainingTaskSpec,
)
from tunefleet.spec.training import EarlyStoppingSpec, LoraTrainingSpec, TrainingSpec
from tunefleet.spec.workflow import TaskNode, Workflow, dump_task_spec, load_task_spec, parse_workflow

__all__ = [
    "BUILTIN_PREFIX",
    "TASK_KINDS",
    "BaseTaskSpec",
    "CheckpointLoadSpec",
    "CheckpointSpec",
    "ConditionSpec",
    "DataSource",
    "EarlyStoppingSpec",
    "EchoData",
    "EchoSpec",
    "EvalSpec",
    "EvaluateSpec",
    "GpuSpec",
    "HardwareSpec",
    "JsonlSpec",
    "LimitsSpec",
    "LocalPath",
    "LoraSftSpec",
    "LoraSpec",
    "LoraTrainingSpec",
    "ModelSource",
    "ModelSpec",
    "OutputSpec",
    "PredictionsSpec",
    "QuantizationSpec",
    "ResourcesSpec",
    "RetrySpec",
    "SftSpec",
    "TaskNode",
    "TaskSpec",
    "TextShape",
    "TrainingData",
    "TrainingSpec",
    "TrainingTaskSpec",
    "TransformersSpec",
    "Workflow",
    "deep_set",
    "dump_task_spec",
    "fill_secrets",
    "format_memory",
    "json_schema",
    "judge",
    "load_task_spec",
    "local_paths",
    "override_document",
    "parse_memory",
    "parse_value",
    "parse_workflow",
    "resolve",
    "secrets_of",
]
