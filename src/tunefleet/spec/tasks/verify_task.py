"""`taskType: verify`: checks that a model is complete and trainable, optionally with another tokenizer."""

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
    """`spec.model` of a verify task."""

    source: ModelSource
    """The model."""
    tokenizer: ModelName | None = None
    """Hub id or folder whose tokenizer replaces the model's; the task then outputs the model with it. The weights do
    not change, so every token must have a row in the embeddings."""


class VerifyOptions(Block):
    """`spec.verify`: checks in addition to files, vocabulary and special tokens."""

    forward: bool = True
    """Load the weights and run one forward pass; the model must fit into the worker's memory."""
    chat_template: bool = False
    """Require a chat template in the tokenizer."""


class VerifyTaskSpec(BaseTaskSpec):
    """`taskType: verify`: checks a model before you train it."""

    task_type: Literal["verify"] = Field(default="verify", alias="taskType")
    """`verify`"""
    model: VerifyModelSpec
    """The model, and optionally another tokenizer."""
    verify: VerifyOptions = Field(default_factory=VerifyOptions)
    """Checks to run."""
    enforce_cpu: bool = False
    """Run the forward pass on the CPU."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of the model is run."""
        return self.model.source.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The model."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the task uses."""
        return Devices(0) if self.enforce_cpu or not self.verify.forward else super().devices

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        model: VerifyModelSpec | None = blocks.get("model")
        made = () if model is None or model.tokenizer is None else ("final_model", "final_model.tar.gz")
        return (*ALWAYS_LEFT, *made)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        resources: ResourcesSpec | None = blocks.get("resources")
        gpu = resources.hardware.gpu if resources is not None else None
        if blocks.get("enforce_cpu") is True and gpu is not None and gpu.count > 0:
            message = f"contradicts resources.hardware.gpu.count: {gpu.count}"
            found.append(("enforce_cpu", message, "remove one of them"))
        return found
