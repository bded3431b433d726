"""The base model without weights: its modules, their types, and tied tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tunefleet.errors import ModelError
from tunefleet.workloads.common.base_model import Source, loading_error

ModuleKind = Literal["linear", "conv1d", "embedding"]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model whose tensors have shapes but no values.

    Args:
        prefix: Prefix that the names in a checkpoint may lack, such as `transformer.`.
    """

    model: PreTrainedModel
    prefix: str

    def kind_of(self, module: str) -> ModuleKind:
        """Return the type of a module.

        Raises:
            ModelError: If there is no such module, or its weights are not a supported matrix.
        """
        try:
            found = self.model.get_submodule(module)
        except AttributeError:
            raise ModelError(
                f"The adapter changes {module}, which the base model does not have.",
                hint="Name the base that the adapter was trained on (base_model_name_or_path in its config).",
            ) from None
        if isinstance(found, Conv1D):
            return "conv1d"
        if isinstance(found, nn.Embedding):
            return "embedding"
        if isinstance(found, nn.Linear):
            return "linear"
        raise ModelError(f"The adapter changes {module}, a {type(found).__name__}, whose weights cannot be merged.")

    @property
    def tied(self) -> dict[str, str]:
        """Tied tensors: name → name of the tensor it is tied to."""
        found: dict[str, str] = getattr(self.model, "all_tied_weights_keys", None) or {}
        return dict(found)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(each.numel() for each in self.model.parameters())

    @property
    def embedding(self) -> str:
        """Name of the tensor of the input embeddings."""
        return self._name_of(self.model.get_input_embeddings())

    @property
    def head(self) -> str | None:
        """Name of the tensor of the output head."""
        head = self.model.get_output_embeddings()
        return None if head is None else self._name_of(head)

    def _name_of(self, module: Any) -> str:
        found = next(name for name, each in self.model.named_modules() if each is module)
        return f"{found}.weight"


def build(source: Source) -> Skeleton:
    """Build a model's modules on the meta device, without reading weights or allocating memory.

    Raises:
        ModelError: If its config cannot be read, is not of a causal language model, or of a quantized one.
    """
    try:
        config = AutoConfig.from_pretrained(
            source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
        # No memory is allocated for the parameters.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise loading_error("model", source, error) from error
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else type(quantization).__name__
        raise ModelError(
            f"The weights of {source.identifier} are quantized ({method}); an adapter cannot be merged into them.",
            hint="Name the original model in bf16, fp16 or fp32: a QLoRA adapter fits it.",
        )
    prefix = f"{model.base_model_prefix}." if model.base_model_prefix else ""
    return Skeleton(model, prefix)


def without_storage(skeleton: Skeleton) -> PreTrainedModel:
    """Replace each tensor by a single zero expanded to its shape, so that libraries can compute with it."""
    for module in skeleton.model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = torch.zeros(1).expand(parameter.shape)
            setattr(module, name, nn.Parameter(empty, requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, torch.zeros(1, dtype=buffer.dtype).expand(buffer.shape), persistent=False)
    return skeleton.model
