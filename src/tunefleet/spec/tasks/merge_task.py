"""`taskType: merge`: LoRA adapters merged into their base, or with each other; and the result as a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tunefleet.spec.base import Block, NotBool, PositiveInt, Text
from tunefleet.spec.options.checkpoint import CheckpointLoadSpec, LoadedCheckpointSpec, pointer_of
from tunefleet.spec.options.model import Dtype, ModelSource
from tunefleet.spec.options.served_model import AdapterSpec
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec, Devices
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.value_preview import show

GgufType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "auto"]
Method = Literal["linear", "ties", "dare_linear", "dare_ties", "svd", "cat"]
Weight = Annotated[float, Field(ge=-100, le=100), NotBool]

# Those that the converter writes itself; the others take `llama-quantize` after it.
DIRECT_GGUF_TYPES: Final = frozenset({"f32", "f16", "bf16", "q8_0", "auto"})
GGUF: Final = "gguf"
QUANTIZE: Final = "llama-quantize"
"""What a worker needs for a GGUF file, and for one of the other types."""
_SPARSE: Final = frozenset({"ties", "dare_linear", "dare_ties"})
_LEAVE: Final = "leave it out"


class MergeAdapterSpec(AdapterSpec):
    """`model.adapters[]` of a merge: a LoRA adapter, from the first place that is there: `path`, `taskId`, `url`."""

    weight: Weight | None = None
    """How much of it counts; 1 by default."""

    @property
    def share(self) -> float:
        """How much of it counts, wherever it was written."""
        return self.scale if self.weight is None else self.weight


class MergeModelSpec(Block):
    """`spec.model` of a merge: the base and its adapters."""

    source: ModelSource
    """The base that the adapters were trained on."""
    adapters: tuple[MergeAdapterSpec, ...] = ()
    """The adapters. None is fine where the base alone becomes a GGUF file."""


class GgufSpec(Block):
    """`merge.gguf`: the merged model as one file for llama.cpp; needs its converter on the worker."""

    type: GgufType = "q8_0"
    """Type of the weights. `f32`, `f16`, `bf16`, `q8_0` and `auto` (as the model has them) are written by
    `convert_hf_to_gguf.py`; the others need `llama-quantize`, too."""
    name: Text | None = None
    """Name of the file, without folders; by default `model-TYPE.gguf`."""


class MergeOptions(Block):
    """`spec.merge`: what becomes of the adapters."""

    into: Literal["base", "adapter"] = "base"
    """`base`: a whole model. `adapter`: one adapter out of several."""
    dtype: Dtype = "auto"
    """With `into: base`: type of the written weights; `auto` is that of the base. Sums are made in float32 whatever it
    is."""
    method: Method = "linear"
    """With `into: adapter`: how they are put together. Into a base they are always added exactly."""
    density: Annotated[float, Field(gt=0, le=1), NotBool] | None = None
    """With `ties` and `dare_*`: the part of the values that is kept; 0.5 by default."""
    majority_sign: Literal["total", "frequency"] | None = None
    """With `ties` and `dare_ties`: how the sign is elected; `total` by default."""
    svd_rank: PositiveInt | None = None
    """With `svd`: rank of the result; by default the largest rank among the adapters."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), NotBool] = 42
    """Of the values that `dare_*` drops."""
    verify: bool | Literal["auto"] = True
    """Prove the result by a forward pass against base and adapters; the whole model must fit into the worker's memory
    for it. `auto`: only where it does, and the task's history says so where it does not."""
    gguf: GgufSpec | None = None
    """Write the model as a GGUF file, too."""


class MergeTaskSpec(BaseTaskSpec):
    """`taskType: merge`: merges LoRA adapters into their base, or with each other."""

    task_type: Literal["merge"] = Field(default="merge", alias="taskType")
    """`merge`"""
    model: MergeModelSpec
    """The base and its adapters."""
    merge: MergeOptions = Field(default_factory=MergeOptions)
    """What becomes of them."""
    checkpoint: LoadedCheckpointSpec = Field(default_factory=LoadedCheckpointSpec)
    """Weights instead of those of the base, such as the model of a task."""

    @property
    def requires_code(self) -> bool:
        """Whether the model's own code is run."""
        return self.model.source.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The base."""
        return self.model.source.identifier

    @property
    def devices(self) -> Devices:
        """Which GPUs the task takes: none unless it asks for them."""
        return Devices(0) if self.resources.hardware.gpu is None else super().devices

    @property
    def start(self) -> CheckpointLoadSpec | None:
        """The weights that are taken instead of the base's."""
        return self.checkpoint.load

    @property
    def start_pointer(self) -> str:
        """The key that names them."""
        return pointer_of(self.checkpoint.load)

    @property
    def product(self) -> str:
        """The folder that the task leaves."""
        return "final_model" if self.merge.into == "base" else "final_lora"

    @property
    def features(self) -> tuple[str, ...]:
        """The converter of a GGUF file."""
        gguf = self.merge.gguf
        if gguf is None:
            return ()
        return (GGUF,) if gguf.type in DIRECT_GGUF_TYPES else (GGUF, QUANTIZE)

    @property
    def gguf_name(self) -> str | None:
        """The GGUF file that the task leaves; None if it leaves none."""
        gguf = self.merge.gguf
        return None if gguf is None else gguf.name or f"model-{gguf.type}.gguf"

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        merge: MergeOptions = blocks.get("merge") or MergeOptions()
        product = "final_model" if merge.into == "base" else "final_lora"
        gguf = () if merge.gguf is None else (merge.gguf.name or f"model-{merge.gguf.type}.gguf",)
        return (*ALWAYS_LEFT, product, f"{product}.tar.gz", *gguf)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
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
    alone = merge.into == "base"
    method = merge.method
    checks = (
        (alone and "method" in given and method != "linear", "method", "has no effect with into: base", _LEAVE),
        (not alone and merge.dtype != "auto", "dtype", "has no effect with into: adapter", _LEAVE),
        (merge.density is not None and (alone or method not in _SPARSE), "density", _needs("ties or dare_*"), _LEAVE),
        (
            merge.majority_sign is not None and (alone or method not in {"ties", "dare_ties"}),
            "majority_sign",
            _needs("ties or dare_ties"),
            _LEAVE,
        ),
        (merge.svd_rank is not None and (alone or method != "svd"), "svd_rank", _needs("svd"), _LEAVE),
        ("seed" in given and (alone or not method.startswith("dare")), "seed", _needs("dare_*"), _LEAVE),
        (not alone and merge.gguf is not None, "gguf", "needs a whole model", "write into: base, or leave it out"),
    )
    found = [(f"merge.{key}", message, hint) for failed, key, message, hint in checks if failed]
    name = merge.gguf.name if merge.gguf is not None else None
    if name is not None and ("/" in name or "\\" in name or not name.endswith(".gguf") or name.startswith(".")):
        found.append(("merge.gguf.name", f"{show(name)} is no name of a GGUF file", "write NAME.gguf"))
    return [*found]


def _needs(methods: str) -> str:
    return f"has an effect only with into: adapter and method {methods}"


def _adapter_faults(model: MergeModelSpec) -> Faults:
    found: Faults = []
    for index, adapter in enumerate(model.adapters):
        at = f"model.adapters.{index}"
        if adapter.weight is not None and "scale" in adapter.model_fields_set:
            found.append((f"{at}.scale", "means the same as weight", "leave one of them out"))
        if adapter.share == 0:
            found.append((f"{at}.weight", "is 0: the adapter would have no part in the result", "leave it out"))
        if "apply" in adapter.model_fields_set and adapter.apply == "runtime":
            found.append((f"{at}.apply", "has no effect in a merge", "leave it out"))
    return found


def _count_faults(adapters: int, merge: MergeOptions) -> Faults:
    if merge.into == "adapter" and adapters < 2:
        return [("model.adapters", "must be two or more to become one adapter", "name them, or write into: base")]
    if adapters == 0 and merge.gguf is None:
        return [("model.adapters", "names nothing to merge", "name an adapter, or ask for merge.gguf")]
    return []
