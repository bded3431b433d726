"""The kinds that go through items one by one: `inference`, `echo`, `api`; those with vectors are in `retrieval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tunefleet.spec.base import NotBool
from tunefleet.spec.options.checkpoint import CheckpointLoadSpec, LoadedCheckpointSpec, pointer_of
from tunefleet.spec.options.environment import runs_code
from tunefleet.spec.options.export import PostprocessSpec
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.spec.options.prompts import EchoData, InferenceData, PromptData
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.served_model import GeneratorModelSpec, tensor_parallel_size
from tunefleet.spec.tasks.api_and_python import PROMPT, ApiSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices, SplittableTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

_LEAVE = "leave one of them out"


class AnsweringTaskSpec(BaseTaskSpec):
    """What the kinds have that load a model to ask it."""

    generates: ClassVar[bool] = True
    """Whether the model writes texts."""

    model: GeneratorModelSpec
    """The model."""
    enforce_cpu: bool = False
    """Run on the CPU, with Transformers."""
    checkpoint: LoadedCheckpointSpec = Field(default_factory=LoadedCheckpointSpec)
    """Weights instead of those of the model."""

    @property
    def requires_code(self) -> bool:
        """Whether the model's own code is run, or variables may bring other code into its engine."""
        vllm = self.model.vllm
        return self.model.trust_remote_code or (vllm is not None and runs_code(vllm.env_vars))

    @property
    def model_identifier(self) -> str | None:
        """The model."""
        return self.model.source.identifier

    @property
    def environments(self) -> tuple[str, ...]:
        """That of vLLM where it is asked for."""
        return ("vllm",) if self.model.vllm is not None and not self.enforce_cpu else ()

    def tensor_parallel_size(self, gpus: int) -> int:
        """Return over how many GPUs vLLM shares each layer; see `serving.tensor_parallel_size`."""
        return tensor_parallel_size(self.model.vllm.tensor_parallel_size if self.model.vllm else None, gpus)

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """The weights that are loaded instead of the model's."""
        return self.checkpoint.load

    @property
    def start_pointer(self) -> str:
        """The key that names them."""
        return pointer_of(self.checkpoint.load)

    @property
    def devices(self) -> Devices:
        """Which GPUs the task takes."""
        return Devices(0) if self.enforce_cpu else super().devices

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        model: GeneratorModelSpec | None = blocks.get("model")
        resources: ResourcesSpec | None = blocks.get("resources")
        gpu = resources.hardware.gpu if resources is not None else None
        vllm = model.vllm if model is not None else None
        if vllm is not None and vllm.convert in {"embed", "classify"} and cls.generates:
            instead = "use `taskType: embedding` for vectors" if vllm.convert == "embed" else "leave it out"
            found.append(("model.vllm.convert", f"{vllm.convert} leaves a model that cannot answer", instead))
        if blocks.get("enforce_cpu") is True:
            if gpu is not None and gpu.count > 0:
                found.append(("enforce_cpu", f"contradicts resources.hardware.gpu.count: {gpu.count}", _LEAVE))
            if vllm is not None:
                found.append(("enforce_cpu", "contradicts model.vllm: on the CPU the task runs without it", _LEAVE))
        asked = vllm.tensor_parallel_size if vllm is not None else None
        if asked is not None and gpu is not None and asked > max(1, gpu.count):
            message = f"needs {asked} GPUs, and the task gets {gpu.count}"
            found.append(("model.vllm.tensor_parallel_size", message, f"write resources.hardware.gpu.count: {asked}"))
        return found


class GeneratorTaskSpec(AnsweringTaskSpec, SplittableTaskSpec):
    """What the kinds have that put items through a model."""

    data: PromptData
    """The items."""


class InferenceTaskSpec(GeneratorTaskSpec):
    """`taskType: inference`: answers prompts."""

    task_type: Literal["inference"] = Field(default="inference", alias="taskType")
    """`inference`"""
    data: InferenceData
    """The items."""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """How answers are drawn."""
    postprocess: PostprocessSpec = Field(default_factory=PostprocessSpec)
    """What is made of the answers."""

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        postprocess: PostprocessSpec | None = blocks.get("postprocess")
        export = postprocess.jsonl_export if postprocess is not None else None
        return (*ALWAYS_LEFT, *((export.path,) if export is not None else ()))

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        data: InferenceData | None = blocks.get("data")
        inference: InferenceSpec | None = blocks.get("inference")
        chats = [each for each in (data.items if data is not None else None) or () if isinstance(each, tuple)]
        if inference is None or not chats:
            return found
        if inference.system_prompt and any(chat[0].get("role", chat[0].get("from")) == "system" for chat in chats):
            message = "cannot be given together with items that begin with a system message"
            found.append(("inference.system_prompt", message, "leave one of them out"))
        if inference.chat_template is False:
            found.append(("inference.chat_template", "is needed for items that are lists of messages", "leave it out"))
        return found


class EchoSpec(SplittableTaskSpec):
    """`taskType: echo`: gives its data back; for trying out a fleet."""

    task_type: Literal["echo"] = Field(default="echo", alias="taskType")
    """`echo`"""
    data: EchoData = Field(default_factory=EchoData)
    """What to give back."""


class ApiTaskSpec(BaseTaskSpec):
    """`taskType: api`: asks an address, once or for each item."""

    task_type: Literal["api"] = Field(default="api", alias="taskType")
    """`api`"""
    api: ApiSpec
    """The request."""
    data: PromptData | None = None
    """The items; without them there is one request."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        api: ApiSpec | None = blocks.get("api")
        if api is None or "data" not in blocks:
            return found
        data: PromptData | None = blocks["data"]
        if data is None and api.has_prompt:
            found.append(("data", f"is required: {PROMPT} in api stands for its items", "or write the text itself"))
        if data is not None and not api.has_prompt:
            found.append(("data", f"has no effect: {PROMPT} stands nowhere in api", "write it where an item belongs"))
        if data is not None and data.type == "dataset":
            hint = "let a task before it, such as `data`, give the items, and name them as ${TASK.result…}"
            found.append(("data.type", "must be list or graph_template: a request is sent by the worker itself", hint))
        return found


class ChatTaskSpec(AnsweringTaskSpec):
    """`taskType: chat`: a session; its turns come by `POST /api/v1/tasks/{id}/chat`."""

    task_type: Literal["chat"] = Field(default="chat", alias="taskType")
    """`chat`"""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """How answers are drawn where a turn does not say it, and the system prompt."""
    idle_s: Annotated[float, Field(ge=1, le=86_400), NotBool] = 600.0
    """Seconds without a turn after which the session ends by itself; the task is then completed."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        inference: InferenceSpec | None = blocks.get("inference")
        if inference is not None and inference.n > 1:
            found.append(("inference.n", "a chat answers once a turn", "leave it out"))
        if inference is not None and inference.logprobs is not None:
            found.append(("inference.logprobs", "cannot be given for a chat", "leave it out"))
        return found
