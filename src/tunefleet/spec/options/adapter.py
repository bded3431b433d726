"""`spec.lora` and `spec.quantization`: the adapter, and the precision of the frozen base model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from tunefleet.spec.base import Block, PositiveFloat, PositiveInt, Share, Text, as_list, only, wrong
from tunefleet.spec.options.model import Dtype, LoadingSpec


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
        only("CAUSAL_LM", "only causal language models can be trained", "leave it out, or write CAUSAL_LM"),
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
            raise wrong("cannot be set together with load_in_4bit", "leave one of them out", at="load_in_8bit")
        return self


def quantized(loading: LoadingSpec, block: QuantizationSpec | None) -> QuantizationSpec | None:
    """Return the quantization of a base model from either block; `None` if it is not quantized."""
    if block is not None and (block.load_in_4bit or block.load_in_8bit):
        return block
    if not (loading.load_in_4bit or loading.load_in_8bit):
        return None
    base = block or QuantizationSpec()
    return base.model_copy(update={"load_in_4bit": loading.load_in_4bit, "load_in_8bit": loading.load_in_8bit})
