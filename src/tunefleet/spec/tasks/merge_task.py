"""`taskType: merge`: merges LoRA adapters into their base model or with each other, optionally to GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tunefleet.spec.base import Block, NotBool, PositiveInt, Text
from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec, LoadedCheckpointSpec, pointer_of
from tunefleet.spec.options.model import Dtype, ModelSource
from tunefleet.spec.options.served_model import AdapterSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.validation_errors import show

GgufType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "auto"]
Method = Literal["linear", "ties", "dare_linear", "dare_ties", "svd", "cat"]
Weight = Annotated[float, Field(ge=-100, le=100), NotBool]

# Types that the converter writes directly; the others also need `llama-quantize`.
DIRECT_GGUF_TYPES: Final = frozenset({"f32", "f16", "bf16", "q8_0", "auto"})
# Worker features for GGUF files, and for the types that need quantization.
GGUF: Final = "gguf"
QUANTIZE: Final = "llama-quantize"
# Methods that drop values and therefore have a density.
_SPARSE: Final = frozenset({"ties", "dare_linear", "dare_ties"})
_LEAVE: Final = "remove it"


class MergeAdapterSpec(AdapterSpec):
    """`model.adapters[]` of a merge: a LoRA adapter, from the first source that exists: `path`, `taskId`, `url`."""

    weight: Weight | None = None
    """Weight of the adapter; default: 1."""

    @property
    def share(self) -> float:
        """Weight of the adapter, from either spelling."""
        return self.scale if self.weight is None else self.weight


class MergeModelSpec(Block):
    """`spec.model` of a merge: the base model and its adapters."""

    source: ModelSource
    """Base model of the adapters."""
    adapters: tuple[MergeAdapterSpec, ...] = ()
    """Adapters to merge; optional if only the base model is converted to GGUF."""


class GgufSpec(Block):
    """`merge.gguf`: export to a GGUF file for llama.cpp; requires the environment `gguf` on the worker."""

    type: GgufType = "q8_0"
    """Data type of the weights; `auto` is the one of the model. With a llama.cpp folder instead of the environment,
    types other than `f32`, `f16`, `bf16`, `q8_0` and `auto` need its `llama-quantize`."""
    name: Text | None = None
    """File name, without folders; default: `model-TYPE.gguf`."""


class MergeOptions(Block):
    """`spec.merge`: how the adapters are merged."""

    into: Literal["base", "adapter"] = "base"
    """`base`: a merged model. `adapter`: one adapter from several."""
    dtype: Dtype = "auto"
    """With `into: base`: data type of the saved weights; `auto` is that of the base model. Sums are always computed in
    float32."""
    method: Method = "linear"
    """With `into: adapter`: merge method. Merging into a base model always adds exactly."""
    density: Annotated[float, Field(gt=0, le=1), NotBool] | None = None
    """With `ties` and `dare_*`: fraction of values to keep; default: 0.5."""
    majority_sign: Literal["total", "frequency"] | None = None
    """With `ties` and `dare_ties`: sign election method; default: `total`."""
    svd_rank: PositiveInt | None = None
    """With `svd`: rank of the result; default: the largest rank among the adapters."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """With `dare_*`: random seed of the dropped values."""
    verify: bool | Literal["auto"] = True
    """Verify the result with a forward pass against the base model and adapters; the model must fit into the worker's
    memory. `auto`: verify only if it fits; otherwise the task's history records that it was skipped."""
    gguf: GgufSpec | None = None
    """Also export the model as a GGUF file."""


class MergeTaskSpec(BaseTaskSpec):
    """`taskType: merge`: merges LoRA adapters into their base model or with each other."""

    task_type: Literal["merge"] = Field(default="merge", alias="taskType")
    """`merge`"""
    model: MergeModelSpec
    """The base model and its adapters."""
    merge: MergeOptions = Field(default_factory=MergeOptions)
    """How the adapters are merged."""
    checkpoint: LoadedCheckpointSpec = Field(default_factory=LoadedCheckpointSpec)
    """Weights to use instead of the base model's, such as the model of a task."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of the model is run."""
        return self.model.source.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The base model."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the task uses: none unless requested."""
        return Devices(0) if self.resources.hardware.gpu is None else super().devices

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """Weights to load instead of the base model's."""
        return self.checkpoint.load

    @property
    def start_pointer(self) -> str:
        """The key that names these weights."""
        return pointer_of(self.checkpoint.load)

    @property
    def product(self) -> str:
        """Name of the output folder."""
        return "final_model" if self.merge.into == "base" else "final_lora"

    @property
    def features(self) -> tuple[str, ...]:
        """Features for a GGUF export."""
        gguf = self.merge.gguf
        if gguf is None:
            return ()
        return (GGUF,) if gguf.type in DIRECT_GGUF_TYPES else (GGUF, QUANTIZE)

    @property
    def gguf_name(self) -> str | None:
        """Name of the GGUF file; `None` without GGUF export."""
        gguf = self.merge.gguf
        return None if gguf is None else gguf.name or f"model-{gguf.type}.gguf"

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        merge: MergeOptions = blocks.get("merge") or MergeOptions()
        product = "final_model" if merge.into == "base" else "final_lora"
        gguf = () if merge.gguf is None else (merge.gguf.name or f"model-{merge.gguf.type}.gguf",)
        return (*ALWAYS_LEFT, product, f"{product}.tar.gz", *gguf)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        model: MergeModelSpec | None = blocks.get("model")
        merge: MergeOptions | None = blocks.get("merge")
        if merge is not None:
            found += _option_faults(merge)
        if model is not None:
            found += _adapter_faults(model)
        if model is not None and merge is not None:
            found += _count_faults(len(model.adapters), merge)
        return found


def _option_faults(merge: MergeOptions) -> Faults:
    given = merge.model_fields_set
    # Merging into a base model always adds exactly; the methods are for combining adapters.
    into_base = merge.into == "base"
    method = merge.method
    checks = (
        (into_base and "method" in given and method != "linear", "method", "has no effect with into: base", _LEAVE),
        (not into_base and merge.dtype != "auto", "dtype", "has no effect with into: adapter", _LEAVE),
        (
            merge.density is not None and (into_base or method not in _SPARSE),
            "density",
            _needs("ties or dare_*"),
            _LEAVE,
        ),
        (
            merge.majority_sign is not None and (into_base or method not in {"ties", "dare_ties"}),
            "majority_sign",
            _needs("ties or dare_ties"),
            _LEAVE,
        ),
        (merge.svd_rank is not None and (into_base or method != "svd"), "svd_rank", _needs("svd"), _LEAVE),
        ("seed" in given and (into_base or not method.startswith("dare")), "seed", _needs("dare_*"), _LEAVE),
        (not into_base and merge.gguf is not None, "gguf", "needs a full model", "set into: base, or remove it"),
    )
    found = [(f"merge.{key}", message, hint) for failed, key, message, hint in checks if failed]
    name = merge.gguf.name if merge.gguf is not None else None
    if name is not None and ("/" in name or "\\" in name or not name.endswith(".gguf") or name.startswith(".")):
        found.append(("merge.gguf.name", f"{show(name)} is not a valid GGUF file name", "write NAME.gguf"))
    return [*found]


def _needs(methods: str) -> str:
    return f"is only for into: adapter with method {methods}"


def _adapter_faults(model: MergeModelSpec) -> Faults:
    found: Faults = []
    for index, adapter in enumerate(model.adapters):
        at = f"model.adapters.{index}"
        if adapter.weight is not None and "scale" in adapter.model_fields_set:
            found.append((f"{at}.scale", "is an alias of weight", "remove one of them"))
        if adapter.share == 0:
            found.append((f"{at}.weight", "is 0, so the adapter has no effect", "remove it"))
        if "apply" in adapter.model_fields_set and adapter.apply == "runtime":
            found.append((f"{at}.apply", "has no effect in a merge", "remove it"))
    return found


def _count_faults(adapters: int, merge: MergeOptions) -> Faults:
    if merge.into == "adapter" and adapters < 2:
        return [("model.adapters", "needs at least two adapters with into: adapter", "add adapters, or set into: base")]
    if adapters == 0 and merge.gguf is None:
        return [("model.adapters", "is empty, so there is nothing to merge", "add an adapter, or set merge.gguf")]
    return []
