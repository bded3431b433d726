"""Translates `config.model`, `config.tokenizer`, `config.lora` and quantization, in all their forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.agent.translate.config_reader import ConfigReader, Defaults

_LORA: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("r", ("r", "rank", "lora_r")),
    ("alpha", ("alpha", "lora_alpha")),
    ("dropout", ("dropout", "lora_dropout")),
    ("target_modules", ("target_modules",)),
    ("bias", ("bias",)),
    ("use_rslora", ("use_rslora",)),
    ("use_dora", ("use_dora",)),
    ("modules_to_save", ("modules_to_save",)),
    ("task_type", ("task_type",)),
)
_LORA_BLOCKS: Final = ("lora", "training.lora_config", "training.lora")
_WIDTHS: Final = {"8bit": 8, "int8": 8, "8": 8, "true": 8, "4bit": 4, "int4": 4, "4": 4, "nf4": 4, "fp4": 4}
_NEEDS_LORA: Final = "needs LoRA: quantized weights cannot be fully fine-tuned"
_OFF: Final = frozenset({"none", "false", "off", "no", ""})
_FOUR: Final = (
    ("quant_type", ("bnb_4bit_quant_type", "quant_type")),
    ("compute_dtype", ("bnb_4bit_compute_dtype", "compute_dtype")),
    ("double_quant", ("bnb_4bit_use_double_quant", "double_quant", "use_double_quant")),
)


def model(read: ConfigReader, defaults: Defaults) -> None:
    """Translate model and tokenizer."""
    name = read.take("model.name", "model.model_name", "model.identifier")
    if not isinstance(name, str) or not name.strip():
        read.fault("model.name", "is required", "use a Hub id, or a folder in TUNEFLEET_MODELS_DIR")
        return
    read.put("model.source.identifier", name, "model.name")
    read.move("model.source.revision", "model.revision")
    tokenizer = read.take("tokenizer.name")
    if tokenizer not in (None, name):
        read.fault("tokenizer.name", f"is {tokenizer!r}, but a model is trained with its own tokenizer", f"use {name}")
    _code(read, defaults)
    read.move("model.transformers.dtype", "model.torch_dtype", "model.dtype")
    read.move("model.transformers.attn_implementation", "model.attn_implementation")
    device_map = read.take("model.device_map")
    if device_map not in (None, "auto"):
        read.warnings.append(f"config.model.device_map {device_map!r} has no effect: the agent chooses the device.")
    read.ignore("tokenizer.padding_side", why="has no effect: the trainer chooses the padding side")
    if read.take("tokenizer.add_eos_token") is False:
        read.warnings.append("config.tokenizer.add_eos_token has no effect: the end token is part of each row.")


def _code(read: ConfigReader, defaults: Defaults) -> None:
    wanted = read.take("model.trust_remote_code")
    read.take("tokenizer.trust_remote_code")
    if wanted and defaults.allow_code:
        read.put("model.source.trust_remote_code", True, "model.trust_remote_code")
    elif wanted:
        read.warnings.append(
            "config.model.trust_remote_code has no effect: TUNEFLEET_ALLOW_CODE is not set on this machine."
        )


def wants_lora(read: ConfigReader) -> bool:
    """Return whether an adapter is trained: the value of `use_lora`, otherwise whether there is a LoRA block."""
    use_lora = read.take("training.use_lora", "model.use_lora")
    given = [block for block in _LORA_BLOCKS if read.look(block)]
    if use_lora is None:
        return bool(given)
    for block in given if not use_lora else ():
        read.warn(block, "has no effect, since use_lora is false")
    return bool(use_lora)


def lora(read: ConfigReader) -> None:
    """Translate the LoRA block, in any of its positions."""
    read.spec["lora"] = {}  # use_lora alone trains an adapter with the default settings
    for name, spellings in _LORA:
        paths = [f"{block}.{spelling}" for block in _LORA_BLOCKS for spelling in spellings]
        value, path = read.taken(*paths)
        if name == "task_type":
            if value not in (None, "CAUSAL_LM"):
                read.fault(path, f"is {value!r}", "use CAUSAL_LM")
        elif value is not None:
            read.put(f"lora.{name}", value, path)
    if read.look("training.target_modules") is not None:
        read.move("lora.target_modules", "training.target_modules")


def quantization(read: ConfigReader, *, with_lora: bool) -> bool:
    """Translate 4-bit and 8-bit settings in every form; return whether the base model is quantized."""
    for path in ("model.quantization", "training.quantization", "quantization"):
        given = read.look(path)
        if given is None:
            continue
        width = _width(read, path, given)
        if width is None:
            continue
        if not with_lora:
            read.fault(path, _NEEDS_LORA, "set training.use_lora to true")
            return True
        _bits(read, path, width)
        return True
    for block in ("model", "training"):
        for width in (4, 8):
            path = f"{block}.load_in_{width}bit"
            if read.take(path):
                if not with_lora:
                    read.fault(path, _NEEDS_LORA, "set training.use_lora to true")
                else:
                    _bits(read, path, width)
                return True
    return False


def _bits(read: ConfigReader, path: str, width: int) -> None:
    block = read.spec.setdefault("quantization", {})
    if any(block.get(f"load_in_{other}bit") for other in (4, 8) if other != width):
        read.fault(path, "contradicts another quantization setting", "remove one of them")
    read.put(f"quantization.load_in_{width}bit", True, path)
    if width == 4:
        for name, spellings in _FOUR:
            read.move(f"quantization.{name}", *(f"{path}.{spelling}" for spelling in spellings))


def _width(read: ConfigReader, path: str, given: Any) -> int | None:
    if not isinstance(given, Mapping):
        word = str(given).strip().lower()
        read.take(path)
        if word in _OFF:
            return None
        width = _WIDTHS.get(word)
        if width is None:
            read.fault(path, f"is {given!r}", "use 4bit or 8bit")
        return width
    four, eight = read.take(f"{path}.load_in_4bit"), read.take(f"{path}.load_in_8bit")
    bits = read.take(f"{path}.bits")
    if read.take(f"{path}.enabled") is False:
        return None
    if four and eight:
        read.fault(f"{path}.load_in_8bit", "cannot be set together with load_in_4bit", "remove one of them")
    if four or bits == 4:
        return 4
    return 8 if eight or bits == 8 else None
