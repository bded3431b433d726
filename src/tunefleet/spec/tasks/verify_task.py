"""`taskType: verify`: whether a model is whole and can be trained; and the model with another one's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from tunefleet.spec.base import Block, ModelName
from tunefleet.spec.options.model import ModelSource
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices
from tunefleet.spec.tasks.cross_field_checks import Faults


class VerifyModelSpec(Block):
    """`spec.model` of a verification."""

    source: ModelSource
    """The model."""
    tokenizer: ModelName | None = None
    """Hub id or folder whose tokenizer takes the place of the model's: the task then leaves the model with it. The
    weights stay as they are, so each of its tokens must have a row in the embeddings."""


class VerifyOptions(Block):
    """`spec.verify`: what is looked at, beside files, vocabulary and special tokens."""

    forward: bool = True
    """Load the weights and run one forward pass; the model must fit into the worker's memory for it."""
    chat_template: bool = False
    """The tokenizer must know how a chat is written."""


class VerifyTaskSpec(BaseTaskSpec):
    """`taskType: verify`: verifies a model, before anything is spent on it."""

    task_type: Literal["verify"] = Field(default="verify", alias="taskType")
    """`verify`"""
    model: VerifyModelSpec
    """The model, and the tokenizer that it is to have."""
    verify: VerifyOptions = Field(default_factory=VerifyOptions)
    """What is looked at."""
    enforce_cpu: bool = False
    """Run the forward pass on the CPU."""

    @property
    def requires_code(self) -> bool:
        """Whether the model's own code is run."""
        return self.model.source.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The model."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the task takes."""
        return Devices(0) if self.enforce_cpu or not self.verify.forward else super().devices

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        model: VerifyModelSpec | None = blocks.get("model")
        made = () if model is None or model.tokenizer is None else ("final_model", "final_model.tar.gz")
        return (*ALWAYS_LEFT, *made)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        resources: ResourcesSpec | None = blocks.get("resources")
        gpu = resources.hardware.gpu if resources is not None else None
        if blocks.get("enforce_cpu") is True and gpu is not None and gpu.count > 0:
            message = f"contradicts resources.hardware.gpu.count: {gpu.count}"
            found.append(("enforce_cpu", message, "leave one of them out"))
        return found
