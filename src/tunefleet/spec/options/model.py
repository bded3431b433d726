"""`spec.model`, `spec.lora`, `spec.quantization`: the base model, how it is loaded, and the adapter."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    ModelName,
    PositiveFloat,
    PositiveInt,
    Revision,
    Share,
    Text,
    as_list,
    many_wrong,
    one_of_words,
    only,
    wrong,
)

AttentionName = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
# Aliases of data types in other tools.
_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
Dtype = Annotated[DtypeName, BeforeValidator(one_of_words(_DTYPES))]


class ModelSource(Block):
    """`model.source`: where the model comes from."""

    type: Literal["huggingface"] = "huggingface"
    """Format of the model, for Hub ids and local folders alike."""
    identifier: ModelName
    """Hub id, local folder or archive, which is uploaded with the workflow, or `builtin:gsm8k-llama-2m`."""
    revision: Revision | None = None
    """Branch, tag or commit on the Hub."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; requires a worker started with `--allow-code`."""


class LoadingSpec(Block):
    """The keys of `model.transformers` that every task type has."""

    device_map: str = "auto"
    """Placement of the layers on devices."""
    dtype: Dtype = "auto"
    """Data type of the weights; `auto` uses bf16 if the hardware supports it, else float32."""
    trust_remote_code: bool = False
    """Alias of `model.source.trust_remote_code`."""
    # Accepted for compatibility, but only with the value that always applies.
    low_cpu_mem_usage: Annotated[
        bool, only(True, "models are always loaded with low memory usage", "remove it, or use true")
    ] = True
    """Always true."""
    load_in_8bit: bool = False
    """Load the base model in 8 bits; for training, only with LoRA."""
    load_in_4bit: bool = False
    """Load the base model in 4 bits; for training, only with LoRA (QLoRA)."""
    use_flash_attention_2: bool = False
    """Alias of `attn_implementation: flash_attention_2`."""
    attn_implementation: AttentionName | None = None
    """Attention implementation; default: the fastest one available."""

    @model_validator(mode="after")
    def _exclusive(self) -> Self:
        faults: list[tuple[str, str, str | None]] = []
        if self.load_in_4bit and self.load_in_8bit:
            faults.append(("load_in_8bit", "cannot be set together with load_in_4bit", "remove one of them"))
        if self.use_flash_attention_2 and self.attn_implementation not in {None, "flash_attention_2"}:
            faults.append(("attn_implementation", "contradicts use_flash_attention_2", "remove one of them"))
        if faults:
            raise many_wrong(faults)
        return self


class TransformersSpec(LoadingSpec):
    """`model.transformers`: how the model is loaded."""

    device_map: Annotated[
        Literal["auto"], only("auto", "the worker selects the device of a training task", "remove it, or use auto")
    ] = "auto"
    """Always `auto`: the worker selects the device."""


class ConfigSpec(Block):
    """`model.config`: keys of older workflow files."""

    fp16: bool | None = None
    """Alias of `training.fp16`."""
    bf16: bool | None = None
    """Alias of `training.bf16`."""
    device_map_auto: Annotated[
        bool, only(True, "the worker selects the device of a training task", "remove it, or use true")
    ] = True
    """Always true: the worker selects the device."""


class ModelSpec(Block):
    """`spec.model`: the base model."""

    source: ModelSource
    """Source of the model."""
    transformers: TransformersSpec = Field(default_factory=TransformersSpec)
    """How the model is loaded."""
    config: ConfigSpec = Field(default_factory=ConfigSpec)
    """Keys of older workflow files."""

    @property
    def trust_remote_code(self) -> bool:
        """Whether to run code that comes with the model."""
        return self.source.trust_remote_code or self.transformers.trust_remote_code


def _targets(value: Any) -> Any:
    if value == "all-linear":
        return value
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise wrong("must be a list of module names, or all-linear", "for example [q_proj, v_proj]")
    return tuple(names)


class LoraSpec(Block):
    """`spec.lora`: the LoRA adapter (PEFT's `LoraConfig`)."""

    r: PositiveInt = 16
    """Rank of the adapter matrices."""
    alpha: PositiveFloat = 32
    """Scaling: the update is multiplied by alpha / r (alpha / √r with `use_rslora`)."""
    dropout: Share = 0.05
    """Dropout probability on the adapter's input."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Which biases are trained."""
    target_modules: Annotated[tuple[str, ...] | Literal["all-linear"], BeforeValidator(_targets)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    )
    """Names of the modules that get an adapter, or `all-linear`."""
    task_type: Annotated[
        Literal["CAUSAL_LM"],
        only("CAUSAL_LM", "only causal language models can be trained", "remove it, or use CAUSAL_LM"),
    ] = "CAUSAL_LM"
    """Always `CAUSAL_LM`."""
    use_rslora: bool = False
    """Use rank-stabilized LoRA, which scales by alpha / √r."""
    use_dora: bool = False
    """Use DoRA, which trains magnitude and direction separately."""
    modules_to_save: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = ()
    """Modules that are fully trained and saved with the adapter."""


class QuantizationSpec(Block):
    """`spec.quantization`: quantization of the frozen base model (QLoRA, with bitsandbytes)."""

    load_in_4bit: bool = False
    """Load the base model in 4 bits."""
    load_in_8bit: bool = False
    """Load the base model in 8 bits."""
    quant_type: Literal["nf4", "fp4"] = "nf4"
    """4-bit data type."""
    double_quant: bool = True
    """Also quantize the quantization constants (double quantization)."""
    compute_dtype: Dtype = "auto"
    """Data type of the computation; `auto` uses bf16 if the hardware supports it, else float32."""

    @model_validator(mode="after")
    def _exclusive(self) -> QuantizationSpec:
        if self.load_in_4bit and self.load_in_8bit:
            raise wrong("cannot be set together with load_in_4bit", "remove one of them", at="load_in_8bit")
        return self


def quantized(loading: LoadingSpec, block: QuantizationSpec | None) -> QuantizationSpec | None:
    """Return the quantization of a base model from either block; `None` if it is not quantized."""
    if block is not None and (block.load_in_4bit or block.load_in_8bit):
        return block
    if not (loading.load_in_4bit or loading.load_in_8bit):
        return None
    base = block or QuantizationSpec()
    return base.model_copy(update={"load_in_4bit": loading.load_in_4bit, "load_in_8bit": loading.load_in_8bit})
