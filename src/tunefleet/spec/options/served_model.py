"""`spec.model` of inference tasks: vLLM options, and adapters on the model."""

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
from tunefleet.spec.options.checkpoint_storage import ArchiveFormat
from tunefleet.spec.options.environment import Secret, Variables
from tunefleet.spec.options.model import Dtype, LoadingSpec, ModelSource
from tunefleet.validation_errors import show

Faults = list[tuple[str, str, str | None]]


class VllmSpec(Block):
    """`model.vllm`: options of vLLM; unset options are chosen for the machine."""

    tensor_parallel_size: PositiveInt | None = None
    """Tensor parallel size, in GPUs; default: all GPUs of the task."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), NotBool] = 0.9
    """Fraction of each GPU's memory that vLLM may use."""
    max_model_len: PositiveInt | None = None
    """Maximum sequence length, prompt and answer, in tokens."""
    dtype: Dtype = "auto"
    """Data type of the weights."""
    download_dir: Text | None = None
    """Folder on the worker for models from the Hub."""
    max_num_batched_tokens: PositiveInt | None = None
    """Maximum number of tokens per forward pass."""
    max_cudagraph_capture_size: PositiveInt | None = None
    """Largest batch size for which CUDA graphs are captured."""
    enable_mm_embeds: bool = False
    """Accept multimodal embeddings as inputs."""
    limit_mm_per_prompt: dict[str, NaturalInt] | None = None
    """Maximum number of multimodal items per prompt, by modality."""
    quantization: Text | None = None
    """Quantization method of the weights."""
    kv_cache_dtype: Text = "auto"
    """Data type of the KV cache."""
    enforce_eager: bool = False
    """Disable CUDA graphs."""
    convert: Literal["auto", "none", "embed", "classify"] | None = None
    """Conversion of the model's head: inference needs `none` or `auto`. `embed` is accepted in `embedding` tasks, which
    compute their vectors without vLLM regardless."""
    release_after_run: bool = False
    """No effect: an engine stays loaded for the next task and is unloaded when its memory is needed."""
    hf_token: Secret | None = None
    """Hugging Face token for a gated model, as `${secret:NAME}`."""
    tokenizer_revision: Revision | None = None
    """Branch, tag or commit of the tokenizer."""
    revision: Revision | None = None
    """Alias of `model.source.revision`."""
    cpu_offload_gb: NaturalFloat = 0
    """GiB of weights to offload to main memory."""
    swap_space: NaturalFloat | None = None
    """GiB of main memory for the KV cache."""
    trust_remote_code: bool = False
    """Alias of `model.source.trust_remote_code`."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """Random seed of the engine."""
    rope_scaling: FreeMapping | None = None
    """RoPE scaling, in the format of the model's configuration."""
    rope_theta: PositiveFloat | None = None
    """RoPE base frequency."""
    env_vars: Variables = Field(default_factory=dict)
    """Environment variables of the engine. Tuning variables such as `VLLM_ATTENTION_BACKEND` or `NCCL_DEBUG` work on
    any worker; any other variable, or a path as value, requires a worker started with `--allow-code`."""


class GeneratorTransformersSpec(LoadingSpec):
    """`model.transformers`: how the model is loaded without vLLM."""

    device_map: Literal["auto", "cpu", "cuda", "balanced", "balanced_low_0", "sequential"] = "auto"
    """Placement of the layers on devices."""


class AdapterSpec(Block):
    """`model.adapters[]`: a LoRA adapter, from the first source that exists: `path`, `taskId`, `url`."""

    type: Literal["lora"] = "lora"
    """Type of the adapter."""
    name: Text | None = None
    """Name of the adapter; default: `lora_0`, `lora_1` and so on."""
    path: Text | None = None
    """Folder or archive on the submitting machine, which is uploaded with the workflow, or on the worker; or a Hub
    id."""
    revision: Revision | None = None
    """Branch, tag or commit of the Hub repository in `path`."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Id of the task that trains it; counts as a dependency, and its files are kept, as with `checkpoint.load`."""
    url: Url | None = None
    """URL of an archive."""
    id: Text | None = None
    """Id in the engine; default: the name."""
    adapter_id: Text | None = None
    """Alias of `id`."""
    apply: Literal["runtime", "merge"] = "runtime"
    """`runtime`: apply per request; `merge`: merge into the weights first."""
    archive_format: ArchiveFormat = "auto"
    """Archive format."""
    headers: Headers | None = None
    """HTTP headers of the request for the URL."""
    scale: Annotated[float, Field(gt=0, le=100), NotBool] = 1.0
    """Scaling factor of the adapter."""

    @model_validator(mode="after")
    def _one_place(self) -> AdapterSpec:
        faults: Faults = []
        if self.path is None and self.url is None and self.task_id is None:
            faults.append(("", "has no source", "set path, taskId or url"))
        if self.revision is not None and self.path is None:
            faults.append(("revision", "has no effect without path", "remove it"))
        if self.id is not None and self.adapter_id is not None:
            faults.append(("adapter_id", "is an alias of id", "remove one of them"))
        if self.headers is not None and self.url is None:
            faults.append(("headers", "has no effect without url", "remove it"))
        if faults:
            raise many_wrong(faults)
        return self


class GeneratorModelSpec(Block):
    """`spec.model` of an inference task."""

    source: ModelSource
    """Source of the model."""
    vllm: VllmSpec | None = None
    """Options of vLLM; if the block is present, a worker with vLLM is required."""
    transformers: GeneratorTransformersSpec | None = None
    """How the model is loaded without vLLM."""
    adapters: tuple[AdapterSpec, ...] = ()
    """LoRA adapters for the model."""

    @model_validator(mode="after")
    def _consistent(self) -> GeneratorModelSpec:
        faults: Faults = []
        # Defaults count too: an explicit `lora_1` may clash with the second adapter's default.
        names = [adapter.name or f"lora_{index}" for index, adapter in enumerate(self.adapters)]
        for index, name in enumerate(names):
            if name in names[:index]:
                faults.append(
                    (f"adapters.{index}.name", f"{show(name)} is used twice", "give each adapter its own name")
                )
        revision = self.vllm.revision if self.vllm is not None else None
        if revision is not None and self.source.revision not in {None, revision}:
            faults.append(("vllm.revision", "contradicts model.source.revision", "remove one of them"))
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def trust_remote_code(self) -> bool:
        """Whether to run code that comes with the model."""
        blocks = (self.source, self.transformers, self.vllm)
        return any(block is not None and block.trust_remote_code for block in blocks)


def tensor_parallel_size(asked: int | None, gpus: int) -> int:
    """Return the tensor parallel size for vLLM.

    Args:
        asked: `model.vllm.tensor_parallel_size`, if set.
        gpus: Number of GPUs of the task.

    Returns:
        The requested size or all GPUs; at most `gpus`, at least 1.
    """
    available = max(1, gpus)
    return available if asked is None else max(1, min(asked, available))
