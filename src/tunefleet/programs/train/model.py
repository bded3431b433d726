"""Load a tokenizer and a causal language model, quantised if asked.

Knows where weights come from and in which type they are held; knows nothing of data or of training.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tunefleet.errors import MachineError, ModelError
from tunefleet.programs import assets
from tunefleet.programs.train import hub
from tunefleet.programs.train.hardware import Kernels


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model lies.

    Args:
        identifier: What the user called it; for messages and for the adapter's config.
        path: What to give to `from_pretrained`.
        revision: Of the hub.
        trust_remote_code: Run code that comes with the model.
    """

    identifier: str
    path: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def public_name(self) -> str:
        """The name under which others find the base: a hub id stays one, anything else is a path."""
        return self.path if os.path.sep in self.path and Path(self.path).is_dir() else self.identifier


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the frozen weights are compressed.

    Args:
        bits: 4 or 8.
        quant_type: `nf4` or `fp4`; of 4 bits only.
        double_quant: Compress the scales too; of 4 bits only.
        compute_dtype: The type of the arithmetic; default: that of the training.
    """

    bits: Literal[4, 8]
    quant_type: str = "nf4"
    double_quant: bool = True
    compute_dtype: str | None = None


def locate(
    identifier: str, local: str | None, *, revision: str | None = None, trust_remote_code: bool = False
) -> Source:
    """Find a model: built in, a local folder, or on the hub.

    Args:
        identifier: As in the spec.
        local: The folder that stands for it on this machine, if it was uploaded.
        revision: Of the hub.
        trust_remote_code: Passed on.

    Raises:
        ModelError: If there is no such model.
        UnreachableError: If the hub does not answer and the model is not in the cache.
    """
    if assets.is_builtin(identifier):
        path = str(assets.locate(identifier, "model"))
    elif local is not None or Path(identifier).expanduser().is_dir():
        folder = Path(local or identifier).expanduser()
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"The model folder {identifier} has no config.json.",
                hint="Name a folder as `save_pretrained` writes it.",
            )
        path = str(folder)
    else:
        path = hub.resolve(identifier, "model", revision)
    return Source(identifier, path, revision, trust_remote_code)


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """Load the tokenizer, padding on the right and with a padding token.

    Raises:
        ModelError: If there is none, or it has neither a padding nor an end token.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable("tokenizer", source, error) from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"The tokenizer of {source.identifier} has neither a padding token nor an end token.")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def context_length(source: Source) -> int | None:
    """Return the longest sequence that the model knows positions for; `None` if its config does not say.

    Raises:
        ModelError: If its config cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(
            source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable("model", source, error) from error
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def load_model(
    source: Source,
    kernels: Kernels,
    *,
    weights: str | None = None,
    frozen: bool = False,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """Load the weights.

    Args:
        source: Where they lie.
        kernels: Attention and arithmetic.
        weights: The type to hold them in; default: float32 if they are trained (bfloat16 would round small updates
            away), the type of the arithmetic if they are frozen.
        frozen: Only an adapter will be trained.
        quantization: Compress the frozen weights.

    Raises:
        ModelError: If the folder or the architecture cannot be loaded.
        MachineError: If quantisation is asked for and bitsandbytes is missing.
    """
    dtype = weights or (kernels.compute if frozen else "float32")
    extra: dict[str, Any] = {}
    if quantization is not None:
        extra["quantization_config"] = _quantization_config(quantization, kernels)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=kernels.attention,
            **extra,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable("model", source, error) from error
    return model


def _quantization_config(quantization: Quantization, kernels: Kernels) -> Any:
    try:
        import bitsandbytes  # noqa: F401 - asks CUDA questions as it is imported, so not before it is needed
    except ImportError:
        raise MachineError(
            "Quantised training needs the package bitsandbytes.", hint="pip install bitsandbytes on the worker."
        ) from None
    if quantization.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.quant_type,
        bnb_4bit_use_double_quant=quantization.double_quant,
        bnb_4bit_compute_dtype=quantization.compute_dtype or kernels.compute,
    )


def _unloadable(what: str, source: Source, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(
        f"The {what} of {source.identifier} cannot be loaded: {reason}",
        hint="Check that the folder or hub name holds a causal language model with its tokenizer.",
        detail=str(error),
    )
