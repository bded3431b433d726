"""`spec.model`: which model is trained, and how it is loaded."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, ModelName, Revision, many_wrong, one_of_words, only

AttentionName = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]

_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
Dtype = Annotated[DtypeName, BeforeValidator(one_of_words(_DTYPES))]


class ModelSource(Block):
    """`model.source`: where the model comes from."""

    type: Literal["huggingface"] = "huggingface"
    """The format; a hub id and a local folder are both of this type."""
    identifier: ModelName
    """Hub id, local folder or archive (it travels with the submit), or `builtin:gsm8k-llama-2m`."""
    revision: Revision | None = None
    """Branch, tag or commit of a hub id."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; needs a worker that was started with `--allow-code`."""


class LoadingSpec(Block):
    """What `model.transformers` has in every task kind."""

    device_map: str = "auto"
    """How the layers are laid on devices."""
    dtype: Dtype = "auto"
    """Type of the loaded weights; `auto` takes bf16 where the hardware has it, else float32."""
    trust_remote_code: bool = False
    """The same as `model.source.trust_remote_code`."""
    low_cpu_mem_usage: Annotated[
        bool, only(True, "models are always loaded with low memory usage", "leave it out, or write true")
    ] = True
    """Always true."""
    load_in_8bit: bool = False
    """Load the base model in 8 bits; of a training only with LoRA."""
    load_in_4bit: bool = False
    """Load the base model in 4 bits; of a training only with LoRA (QLoRA)."""
    use_flash_attention_2: bool = False
    """The same as `attn_implementation: flash_attention_2`."""
    attn_implementation: AttentionName | None = None
    """Attention kernel; by default the fastest that the machine has."""

    @model_validator(mode="after")
    def _exclusive(self) -> Self:
        faults: list[tuple[str, str, str | None]] = []
        if self.load_in_4bit and self.load_in_8bit:
            faults.append(("load_in_8bit", "cannot be set together with load_in_4bit", "leave one of them out"))
        if self.use_flash_attention_2 and self.attn_implementation not in {None, "flash_attention_2"}:
            faults.append(("attn_implementation", "contradicts use_flash_attention_2", "leave one of them out"))
        if faults:
            raise many_wrong(faults)
        return self


class TransformersSpec(LoadingSpec):
    """`model.transformers`: how the model is loaded."""

    device_map: Annotated[
        Literal["auto"], only("auto", "the worker chooses the device of a training", "leave it out, or write auto")
    ] = "auto"
    """Always `auto`: the worker chooses the device."""


class ConfigSpec(Block):
    """`model.config`: what older documents say about a model that is trained."""

    fp16: bool | None = None
    """The same as `training.fp16`."""
    bf16: bool | None = None
    """The same as `training.bf16`."""
    device_map_auto: Annotated[
        bool, only(True, "the worker chooses the device of a training", "leave it out, or write true")
    ] = True
    """Always true: the worker chooses the device."""


class ModelSpec(Block):
    """`spec.model`: which model is trained."""

    source: ModelSource
    """Where it comes from."""
    transformers: TransformersSpec = Field(default_factory=TransformersSpec)
    """How it is loaded."""
    config: ConfigSpec = Field(default_factory=ConfigSpec)
    """What older documents say about it."""

    @property
    def trust_remote_code(self) -> bool:
        """Whether code that comes with the model is run."""
        return self.source.trust_remote_code or self.transformers.trust_remote_code
