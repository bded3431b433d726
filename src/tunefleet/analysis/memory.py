"""Peak memory of a training step, from the sizes of the model. Arithmetic only, no tensors.

Without side effects: the server estimates from a workflow file, a training run from its own model before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from tunefleet.spec import LoraSpec
from tunefleet.spec.options.model import QuantizationSpec
from tunefleet.spec.options.training_options import CommonTrainingSpec

_OPTIMIZER_BYTES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "paged_adamw_32bit": 8, "adafactor": 1, "sgd": 0}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that the estimate is computed from.

    Args:
        weights: Parameters of the model.
        linear_weights: Weights that quantization compresses.
        trained: Trained parameters.
        layers: Number of blocks.
        intermediate: Width of the feed-forward part.
        vocabulary: Vocabulary size.
    """

    weights: int
    linear_weights: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes at the peak of a training step.

    Args:
        correction: Measured memory of earlier runs of this kind, divided by their estimates.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    reference_bytes: int = 0
    value_model_bytes: int = 0
    correction: float = 1.0

    @property
    def raw_bytes(self) -> int:
        """The sum of the parts."""
        parts = (self.weights_bytes, self.gradients_bytes, self.optimizer_bytes)
        return sum(parts) + self.activations_bytes + self.logits_bytes + self.reference_bytes + self.value_model_bytes

    @property
    def total_bytes(self) -> int:
        """The corrected sum."""
        return round(self.raw_bytes * self.correction)


@dataclass(frozen=True, slots=True)
class Load:
    """What a training run does per row of its batch.

    Args:
        sequences: Sequences that go through the model together.
        reference: Whether a frozen reference model scores them as well.
        value_model: Whether a value model of the same size is trained as well.
    """

    sequences: int = 1
    reference: bool = False
    value_model: bool = False


PLAIN: Final = Load()


class Planned(Protocol):
    """The parts of a spec that the estimate uses."""

    @property
    def training(self) -> CommonTrainingSpec:
        """Batch, length, optimizer."""

    @property
    def adapter(self) -> LoraSpec | None:
        """The trained adapter; None for full fine-tuning."""

    @property
    def quantized(self) -> QuantizationSpec | None:
        """The quantization of the base model; None if it is not quantized."""


def estimate(
    shape: Shape,
    spec: Planned,
    compute: str,
    length: int,
    *,
    liger: bool = False,
    labelled: float = 1.0,
    correction: float = 1.0,
    load: Load = PLAIN,
) -> Estimate:
    """Estimate the memory of a training run.

    Args:
        spec: Batch, optimizer, quantization.
        compute: Compute dtype, such as `bfloat16`.
        length: Max sequence length in tokens.
        liger: Whether Liger's kernels compute the loss.
        labelled: Share of the tokens that have a label, if only those are in the loss.
        correction: Correction from earlier runs.
        load: Work per row.
    """
    training = spec.training
    # Bytes per value.
    width = 4 if compute == "float32" else 2
    tokens = training.batch_size * load.sequences * length
    # What a block keeps for the backward pass: inputs and outputs of its attention and feed-forward part.
    block = tokens * (12 * shape.hidden + 4 * shape.intermediate) * width
    kept = tokens * shape.hidden * width
    checkpointed = training.gradient_checkpointing
    # The logits and their gradient, in float32; Liger's fused loss never materializes them.
    logits = 0 if liger else round(2 * labelled * tokens * shape.vocabulary * 4)
    # AdamW in float32 has two moments of four bytes each.
    optimizer = _OPTIMIZER_BYTES.get(training.optim or "", 8)
    # The value model is never quantized.
    value_weights = 4 * shape.weights if spec.adapter is None else width * shape.weights + 4 * shape.trained
    return Estimate(
        weights_bytes=_weights(shape, spec, width),
        # Trained weights, and so their gradients, are kept in float32.
        gradients_bytes=4 * shape.trained,
        optimizer_bytes=optimizer * shape.trained,
        activations_bytes=shape.layers * kept + block if checkpointed else shape.layers * block,
        logits_bytes=logits,
        reference_bytes=width * shape.weights if load.reference else 0,
        value_model_bytes=value_weights + (4 + optimizer) * shape.trained if load.value_model else 0,
        correction=correction,
    )


def _weights(shape: Shape, spec: Planned, width: int) -> int:
    if spec.adapter is None:
        return 4 * shape.weights
    if spec.quantized is None:
        return width * shape.weights + 4 * shape.trained
    # Half a byte (or one) per weight, and the quantization scales.
    each = 0.56 if spec.quantized.load_in_4bit else 1.05
    return round(each * shape.linear_weights) + width * (shape.weights - shape.linear_weights) + 4 * shape.trained


class UnknownShape(Exception):
    """The sizes of a model cannot be derived from its configuration; the message holds the reason."""


class _Linear(NamedTuple):
    name: str
    inputs: int
    outputs: int
    bias: bool


class _Family(NamedTuple):
    """Properties that the models of one type have in common.

    Args:
        norms: Norms of the hidden size per layer.
        fused: Whether q, k and v are one matrix, and gate and up are another.
        qkv_bias: Whether q, k and v have biases whatever the configuration says.
        head_norms: Whether queries and keys are normalized per head.
        biased: Whether `attention_bias` has an effect.
        tied: Whether embeddings and head are the same weights if the configuration does not say.
    """

    norms: int = 2
    fused: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    biased: bool = True
    tied: bool = False


_FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _Family(),
    "mistral": _Family(biased=False),
    "smollm3": _Family(tied=True),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(head_norms=True),
    "gemma": _Family(tied=True),
    "gemma2": _Family(norms=4, tied=True),
    "gemma3_text": _Family(norms=4, head_norms=True, tied=True),
    "phi3": _Family(fused=True),
}


def shape_of(config: Mapping[str, Any], adapter: LoraSpec | None) -> Shape:
    """Count the weights of a model.

    Args:
        adapter: The trained adapter; None for full fine-tuning.

    Raises:
        UnknownShape: If the model type is unknown, or its configuration lacks a size.
    """
    name = str(config.get("model_type"))
    family = _FAMILIES.get(name)
    if family is None:
        raise UnknownShape(f"the sizes of model type {name} are unknown")
    hidden, layers, vocabulary, intermediate = (
        _size(config, key) for key in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
    )
    linear = _linear(config, family, hidden, intermediate)
    matrices = sum(each.inputs * each.outputs for each in linear)
    biases = sum(each.outputs for each in linear if each.bias)
    # One norm for queries and one for keys.
    head_norms = 2 * _head(config, hidden) if family.head_norms else 0
    layer = matrices + biases + head_norms + family.norms * hidden
    tied = bool(config.get("tie_word_embeddings", family.tied))
    weights = layers * layer + hidden + vocabulary * hidden * (1 if tied else 2)
    return Shape(
        weights=weights,
        linear_weights=layers * matrices,
        trained=weights if adapter is None else layers * _adapted(linear, adapter),
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        vocabulary=vocabulary,
    )


def _linear(config: Mapping[str, Any], family: _Family, hidden: int, intermediate: int) -> list[_Linear]:
    heads = _size(config, "num_attention_heads")
    head = _head(config, hidden)
    queries, keys = heads * head, int(config.get("num_key_value_heads") or heads) * head
    biased = family.biased and bool(config.get("attention_bias"))
    mlp_biased = bool(config.get("mlp_bias"))
    first = family.qkv_bias or biased
    if family.fused:
        return [
            _Linear("qkv_proj", hidden, queries + 2 * keys, bias=False),
            _Linear("o_proj", queries, hidden, bias=False),
            _Linear("gate_up_proj", hidden, 2 * intermediate, bias=False),
            _Linear("down_proj", intermediate, hidden, bias=False),
        ]
    return [
        _Linear("q_proj", hidden, queries, first),
        _Linear("k_proj", hidden, keys, first),
        _Linear("v_proj", hidden, keys, first),
        _Linear("o_proj", queries, hidden, biased and not family.qkv_bias),
        _Linear("gate_proj", hidden, intermediate, mlp_biased),
        _Linear("up_proj", hidden, intermediate, mlp_biased),
        _Linear("down_proj", intermediate, hidden, mlp_biased),
    ]


def _adapted(linear: list[_Linear], lora: LoraSpec) -> int:
    chosen = [each for each in linear if lora.target_modules == "all-linear" or each.name in lora.target_modules]
    return sum(lora.r * (each.inputs + each.outputs) for each in chosen)


def _head(config: Mapping[str, Any], hidden: int) -> int:
    return int(config.get("head_dim") or hidden // _size(config, "num_attention_heads"))


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    # bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnknownShape(f"its configuration has no {key}")
    return value
