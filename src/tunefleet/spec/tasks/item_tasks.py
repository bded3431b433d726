"""Task types that process items: `inference`, `echo`, `api`, and `chat`; vector tasks are in `retrieval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tunefleet.spec.base import NotBool
from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec, LoadedCheckpointSpec, pointer_of
from tunefleet.spec.options.environment import runs_code
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.spec.options.output import PostprocessSpec
from tunefleet.spec.options.prompts import EchoData, InferenceData, PromptData
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.served_model import GeneratorModelSpec, tensor_parallel_size
from tunefleet.spec.tasks.api_and_python import PROMPT, ApiSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices, SplittableTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

_LEAVE = "remove one of them"


class AnsweringTaskSpec(BaseTaskSpec):
    """Keys of task types that load a model for inference."""

    generates: ClassVar[bool] = True
    """Whether the model generates text."""

    model: GeneratorModelSpec
    """The model."""
    enforce_cpu: bool = False
    """Run on the CPU, with Transformers."""
    checkpoint: LoadedCheckpointSpec = Field(default_factory=LoadedCheckpointSpec)
    """Weights to use instead of the model's own."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of the model is run, or variables may load other code into the engine."""
        vllm = self.model.vllm
        return self.model.trust_remote_code or (vllm is not None and runs_code(vllm.env_vars))

    @property
    def model_identifier(self) -> str | None:
        """The model."""
        return self.model.source.identifier

    @property
    def environments(self) -> tuple[str, ...]:
        """That of vLLM, if requested."""
        return ("vllm",) if self.model.vllm is not None and not self.enforce_cpu else ()

    def tensor_parallel_size(self, gpus: int) -> int:
        """Return the tensor parallel size for vLLM."""
        return tensor_parallel_size(self.model.vllm.tensor_parallel_size if self.model.vllm else None, gpus)

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """Weights to load instead of the model's own."""
        return self.checkpoint.load

    @property
    def start_pointer(self) -> str:
        """The key that names these weights."""
        return pointer_of(self.checkpoint.load)

    @property
    def devices(self) -> Devices:
        """Which GPUs the task uses."""
        return Devices(0) if self.enforce_cpu else super().devices

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        model: GeneratorModelSpec | None = blocks.get("model")
        resources: ResourcesSpec | None = blocks.get("resources")
        gpu = resources.hardware.gpu if resources is not None else None
        vllm = model.vllm if model is not None else None
        if vllm is not None and vllm.convert in {"embed", "classify"} and cls.generates:
            instead = "use `taskType: embedding` for vectors" if vllm.convert == "embed" else "remove it"
            found.append(("model.vllm.convert", f"a model converted with {vllm.convert} cannot generate text", instead))
        if blocks.get("enforce_cpu") is True:
            if gpu is not None and gpu.count > 0:
                found.append(("enforce_cpu", f"contradicts resources.hardware.gpu.count: {gpu.count}", _LEAVE))
            if vllm is not None:
                found.append(("enforce_cpu", "contradicts model.vllm, which is not used on the CPU", _LEAVE))
        asked = vllm.tensor_parallel_size if vllm is not None else None
        if asked is not None and gpu is not None and asked > max(1, gpu.count):
            message = f"needs {asked} GPUs, but the task gets {gpu.count}"
            found.append(("model.vllm.tensor_parallel_size", message, f"set resources.hardware.gpu.count: {asked}"))
        return found


class GeneratorTaskSpec(AnsweringTaskSpec, SplittableTaskSpec):
    """Keys of task types that process items with a model."""

    data: PromptData
    """The items."""


class InferenceTaskSpec(GeneratorTaskSpec):
    """`taskType: inference`: generates answers to prompts."""

    task_type: Literal["inference"] = Field(default="inference", alias="taskType")
    """`inference`"""
    data: InferenceData
    """The items."""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """Sampling parameters."""
    postprocess: PostprocessSpec = Field(default_factory=PostprocessSpec)
    """Export of the answers."""

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        postprocess: PostprocessSpec | None = blocks.get("postprocess")
        export = postprocess.jsonl_export if postprocess is not None else None
        return (*ALWAYS_LEFT, *((export.path,) if export is not None else ()))

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        data: InferenceData | None = blocks.get("data")
        inference: InferenceSpec | None = blocks.get("inference")
        # Inline chats only; rows of a dataset are not known at this point.
        chats = [each for each in (data.items if data is not None else None) or () if isinstance(each, tuple)]
        if inference is None or not chats:
            return found
        if inference.system_prompt and any(chat[0].get("role", chat[0].get("from")) == "system" for chat in chats):
            message = "cannot be combined with items that begin with a system message"
            found.append(("inference.system_prompt", message, "remove one of them"))
        if inference.chat_template is False:
            found.append(("inference.chat_template", "is required for items that are lists of messages", "remove it"))
        return found


class EchoSpec(SplittableTaskSpec):
    """`taskType: echo`: returns its data; for testing a fleet."""

    task_type: Literal["echo"] = Field(default="echo", alias="taskType")
    """`echo`"""
    data: EchoData = Field(default_factory=EchoData)
    """The items to return."""


class ApiTaskSpec(BaseTaskSpec):
    """`taskType: api`: sends an HTTP request, once or for each item."""

    task_type: Literal["api"] = Field(default="api", alias="taskType")
    """`api`"""
    api: ApiSpec
    """The request."""
    data: PromptData | None = None
    """The items; without them one request is sent."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        api: ApiSpec | None = blocks.get("api")
        if api is None or "data" not in blocks:
            return found
        data: PromptData | None = blocks["data"]
        if data is None and api.has_prompt:
            found.append(
                ("data", f"is required: {PROMPT} in api refers to its items", "or replace {{prompt}} with the text")
            )
        if data is not None and not api.has_prompt:
            found.append(("data", f"has no effect: api does not contain {PROMPT}", "add it where the item belongs"))
        if data is not None and data.type == "dataset":
            hint = "produce the items in an earlier task, such as `data`, and refer to them as ${TASK.result…}"
            found.append(("data.type", "must be list or graph_template: api tasks load no datasets", hint))
        return found


class ChatTaskSpec(AnsweringTaskSpec):
    """`taskType: chat`: a chat session; send turns to `POST /api/v1/tasks/{id}/chat`."""

    task_type: Literal["chat"] = Field(default="chat", alias="taskType")
    """`chat`"""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """Default sampling parameters of the turns, and the system prompt."""
    idle_s: Annotated[float, Field(ge=1, le=86_400), NotBool] = 600.0
    """Idle seconds after which the session ends and the task completes."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        inference: InferenceSpec | None = blocks.get("inference")
        if inference is not None and inference.n > 1:
            found.append(("inference.n", "a chat has one answer per turn", "remove it"))
        if inference is not None and inference.logprobs is not None:
            found.append(("inference.logprobs", "is not supported in a chat", "remove it"))
        return found
