"""The kinds that go through items one by one: `inference`, `embedding`, `rag`, `echo`, `api`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.spec.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices, SplittableTaskSpec
from tunefleet.spec.calling import ApiSpec, EmbeddingModelSpec, QdrantSpec, SearchSpec
from tunefleet.spec.checkpoint import CheckpointLoadSpec, LoadedCheckpointSpec
from tunefleet.spec.export import PostprocessSpec
from tunefleet.spec.generation import InferenceSpec
from tunefleet.spec.prompts import EchoData, PromptData
from tunefleet.spec.resources import ResourcesSpec
from tunefleet.spec.serving import GeneratorModelSpec, tensor_parallel_size
from tunefleet.spec.together import Faults

_LEAVE = "leave one of them out"


class GeneratorTaskSpec(SplittableTaskSpec):
    """What the kinds have that put items through a model."""

    model: GeneratorModelSpec
    """The model."""
    data: PromptData
    """The items."""
    enforce_cpu: bool = False
    """Run on the CPU, with Transformers."""
    checkpoint: LoadedCheckpointSpec = LoadedCheckpointSpec()
    """Weights instead of those of the model."""

    @property
    def requires_code(self) -> bool:
        """Whether the model's own code is run."""
        return self.model.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The model."""
        return self.model.source.identifier

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """The weights that are loaded instead of the model's."""
        return self.checkpoint.load

    @property
    def start_pointer(self) -> str:
        """The key that names them."""
        return f"checkpoint.load.{self.checkpoint.load.place_key if self.checkpoint.load is not None else 'path'}"

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


class InferenceTaskSpec(GeneratorTaskSpec):
    """`taskType: inference`: answers prompts."""

    task_type: Literal["inference"] = Field(default="inference", alias="taskType")
    """`inference`"""
    inference: InferenceSpec = InferenceSpec()
    """How answers are drawn."""
    postprocess: PostprocessSpec = PostprocessSpec()
    """What is made of the answers."""

    def tensor_parallel_size(self, gpus: int) -> int:
        """Return over how many GPUs vLLM shares each layer; see `serving.tensor_parallel_size`."""
        return tensor_parallel_size(self.model.vllm.tensor_parallel_size if self.model.vllm else None, gpus)

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        postprocess: PostprocessSpec | None = blocks.get("postprocess")
        export = postprocess.jsonl_export if postprocess is not None else None
        return (*ALWAYS_LEFT, *((export.path,) if export is not None else ()))


class EmbeddingTaskSpec(GeneratorTaskSpec):
    """`taskType: embedding`: makes a vector of each text."""

    task_type: Literal["embedding"] = Field(default="embedding", alias="taskType")
    """`embedding`"""


class RagTaskSpec(BaseTaskSpec):
    """`taskType: rag`: searches a vector database."""

    task_type: Literal["rag"] = Field(default="rag", alias="taskType")
    """`rag`"""
    qdrant: QdrantSpec
    """The vector database."""
    embedding: EmbeddingModelSpec = EmbeddingModelSpec()
    """What makes vectors of the queries."""
    search: SearchSpec = SearchSpec()
    """How is searched."""
    data: PromptData | None = None
    """The queries; or `query`."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """A single query; or `data`."""

    @property
    def model_identifier(self) -> str | None:
        """The model that makes vectors."""
        return self.embedding.model

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *_one_of_data_and_query(blocks)]


def _one_of_data_and_query(blocks: Mapping[str, Any]) -> Faults:
    # A block that is wrong in itself is not among them; then nothing can be said.
    if "data" not in blocks or "query" not in blocks:
        return []
    if blocks["data"] is None and blocks["query"] is None:
        return [("data", "is required", "the queries; or write a single one as query")]
    if blocks["data"] is not None and blocks["query"] is not None:
        return [("query", "cannot be given together with data", _LEAVE)]
    return []


class EchoSpec(SplittableTaskSpec):
    """`taskType: echo`: gives its data back; for trying out a fleet."""

    task_type: Literal["echo"] = Field(default="echo", alias="taskType")
    """`echo`"""
    data: EchoData = EchoData()
    """What to give back."""


class ApiTaskSpec(BaseTaskSpec):
    """`taskType: api`: asks an address, once or for each item."""

    task_type: Literal["api"] = Field(default="api", alias="taskType")
    """`api`"""
    api: ApiSpec
    """The request."""
    data: PromptData | None = None
    """The items; without them there is one request."""
