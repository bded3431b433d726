"""`spec.model` of a task that answers prompts: vLLM's options, and adapters that are put on the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tunefleet.spec.base import (
    Block,
    FreeMapping,
    Headers,
    NaturalFloat,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Revision,
    Text,
    Url,
    many_wrong,
)
from tunefleet.spec.options.checkpoint import ArchiveFormat
from tunefleet.spec.options.environment import Secret, Variables
from tunefleet.spec.options.model import Dtype, LoadingSpec, ModelSource
from tunefleet.spec.value_preview import show

Faults = list[tuple[str, str, str | None]]


class VllmSpec(Block):
    """`model.vllm`: options of the engine; what is not given is chosen for the machine."""

    tensor_parallel_size: PositiveInt | None = None
    """GPUs that share each layer; by default all that the task gets."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), NotBool] = 0.9
    """Part of each GPU's memory."""
    max_model_len: PositiveInt | None = None
    """Longest sequence, prompt and answer together, in tokens."""
    dtype: Dtype = "auto"
    """Type of the weights."""
    download_dir: Text | None = None
    """Folder of the worker for models from the hub."""
    max_num_batched_tokens: PositiveInt | None = None
    """Tokens of one pass."""
    max_cudagraph_capture_size: PositiveInt | None = None
    """Largest batch that CUDA graphs are captured for."""
    enable_mm_embeds: bool = False
    """Take embeddings of images and the like as inputs."""
    limit_mm_per_prompt: dict[str, NaturalInt] | None = None
    """Most images and the like in one prompt."""
    quantization: Text | None = None
    """Method by which the weights are quantised."""
    kv_cache_dtype: Text = "auto"
    """Type of the cache."""
    enforce_eager: bool = False
    """Capture no CUDA graphs."""
    convert: Literal["auto", "none", "embed", "classify"] | None = None
    """What becomes of the model's head: answers need `none` or `auto`. `embed` stands in an `embedding`, which makes
    its vectors without vLLM all the same."""
    release_after_run: bool = False
    """Without effect: an engine stays for the next task, and goes when its memory is needed."""
    hf_token: Secret | None = None
    """Key for a gated model, as `${secret:NAME}`."""
    tokenizer_revision: Revision | None = None
    """Branch, tag or commit of the tokenizer."""
    revision: Revision | None = None
    """The same as `model.source.revision`."""
    cpu_offload_gb: NaturalFloat = 0
    """GiB of the weights that stay in main memory."""
    swap_space: NaturalFloat | None = None
    """GiB of main memory for the cache."""
    trust_remote_code: bool = False
    """The same as `model.source.trust_remote_code`."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """Seed of the engine."""
    rope_scaling: FreeMapping | None = None
    """Scaling of positions, as the model's configuration has it."""
    rope_theta: PositiveFloat | None = None
    """Base of the positions."""
    env_vars: Variables = Field(default_factory=dict)
    """Variables of the engine's process. Those that tune it, such as `VLLM_ATTENTION_BACKEND` or `NCCL_DEBUG`, run
    anywhere; any other, or a path as a value, needs a worker that was started with `--allow-code`."""


class GeneratorTransformersSpec(LoadingSpec):
    """`model.transformers`: how the model is loaded where vLLM does not run."""

    device_map: Literal["auto", "cpu", "cuda", "balanced", "balanced_low_0", "sequential"] = "auto"
    """How the layers are laid on devices."""


class AdapterSpec(Block):
    """`model.adapters[]`: a LoRA adapter, from the first place that is there: `path`, `taskId`, `url`."""

    type: Literal["lora"] = "lora"
    """The kind of adapter."""
    name: Text | None = None
    """What it is called; by default `lora_0`, `lora_1` and so on."""
    path: Text | None = None
    """Folder or archive on the machine that submits, which travels with the submit, or on the worker; or a hub id."""
    revision: Revision | None = None
    """Branch, tag or commit of the hub's repository that `path` names."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Id of the task that trains it; it is waited for and kept as one in `checkpoint.load`."""
    url: Url | None = None
    """Address of an archive."""
    id: Text | None = None
    """Its id in the engine; by default its name."""
    adapter_id: Text | None = None
    """The same as `id`."""
    apply: Literal["runtime", "merge"] = "runtime"
    """Put it on with each request, or merge it into the weights first."""
    archive_format: ArchiveFormat = "auto"
    """Format of the archive."""
    headers: Headers | None = None
    """Sent with the request for the address."""
    scale: Annotated[float, Field(gt=0, le=100), NotBool] = 1.0
    """Its weight."""

    @model_validator(mode="after")
    def _one_place(self) -> AdapterSpec:
        faults: Faults = []
        if self.path is None and self.url is None and self.task_id is None:
            faults.append(("", "names no adapter", "give path, taskId or url"))
        if self.revision is not None and self.path is None:
            faults.append(("revision", "has no effect without path", "leave it out"))
        if self.id is not None and self.adapter_id is not None:
            faults.append(("adapter_id", "means the same as id", "leave one of them out"))
        if self.headers is not None and self.url is None:
            faults.append(("headers", "has no effect without url", "leave it out"))
        if faults:
            raise many_wrong(faults)
        return self


class GeneratorModelSpec(Block):
    """`spec.model` of a task that answers prompts."""

    source: ModelSource
    """Where it comes from."""
    vllm: VllmSpec | None = None
    """Options of vLLM; the block being there asks for a worker with vLLM."""
    transformers: GeneratorTransformersSpec | None = None
    """How the model is loaded where vLLM does not run."""
    adapters: tuple[AdapterSpec, ...] = ()
    """Adapters on the model."""

    @model_validator(mode="after")
    def _consistent(self) -> GeneratorModelSpec:
        faults: Faults = []
        names = [adapter.name or f"lora_{index}" for index, adapter in enumerate(self.adapters)]
        for index, name in enumerate(names):
            if name in names[:index]:
                faults.append((f"adapters.{index}.name", f"{show(name)} is given twice", "name each adapter otherwise"))
        revision = self.vllm.revision if self.vllm is not None else None
        if revision is not None and self.source.revision not in {None, revision}:
            faults.append(("vllm.revision", "contradicts model.source.revision", "leave one of them out"))
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def trust_remote_code(self) -> bool:
        """Whether code that comes with the model is run."""
        blocks = (self.source, self.transformers, self.vllm)
        return any(block is not None and block.trust_remote_code for block in blocks)


def tensor_parallel_size(asked: int | None, gpus: int) -> int:
    """Return over how many GPUs vLLM shares each layer.

    Args:
        asked: `model.vllm.tensor_parallel_size`, if it is given.
        gpus: How many the task was given.

    Returns:
        What was asked for, or else all; never more than there are, and at least 1.
    """
    there = max(1, gpus)
    return there if asked is None else max(1, min(asked, there))
