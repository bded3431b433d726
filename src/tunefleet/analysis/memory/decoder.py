"""Sizes of a decoder from its `config.json`, without any library: names and shapes of its weight matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tunefleet.analysis.memory.estimate import Shape
from tunefleet.spec import LoraSpec


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
