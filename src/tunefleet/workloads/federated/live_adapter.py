"""The adapter being trained: its tensors by the names under which PEFT saves them.

Uploads are copied from these tensors and downloads into them, so that the optimizer keeps its parameters.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, PeftType, get_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn

from tunefleet.errors import AdapterRefused, ModelError, NotFoundError
from tunefleet.federation.adapter import AdapterConfig, config_of

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
# Settings that change what the values of the tensors mean for the model.
_SCALING = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")


class LiveAdapter:
    """A LoRA adapter of a model, with access to its tensors by published name."""

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.model = unwrap_peft(model)
        self.name = name or str(self.model.active_adapters[0])
        if self.name not in self.model.peft_config:
            known = ", ".join(self.model.peft_config)
            raise ModelError(f"The model has no adapter {self.name!r}.", hint=f"It has: {known}.")
        self.config = self.model.peft_config[self.name]
        if self.config.peft_type != PeftType.LORA:
            raise ModelError(f"Adapter {self.name!r} is {self.config.peft_type.value}; federations support only LoRA.")
        self.tensors = _published(self.model, self.name)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The trainable parameters."""
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad
        }

    def copied(self) -> dict[str, torch.Tensor]:
        """Return a copy of the current values on their device; does not synchronize with the GPU."""
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

    def described(self, base_model: str | None = None) -> dict[str, Any]:
        """Return the `adapter_config.json` that PEFT would save."""
        config = copy.copy(self.config)
        config.inference_mode = True
        config.base_model_name_or_path = (
            base_model
            or config.base_model_name_or_path
            or getattr(self.model.get_base_model(), "name_or_path", None)
            or None
        )
        # Through a file: only `save_pretrained` applies all of PEFT's conversions to JSON.
        with tempfile.TemporaryDirectory(prefix="tunefleet-config-") as folder:
            config.save_pretrained(folder)
            read: dict[str, Any] = json.loads(Path(folder, CONFIG).read_text(encoding="utf-8"))
        return read

    def config_for(self, base_model: str | None = None) -> AdapterConfig:
        """Return the config as parsed by the server."""
        return config_of(self.described(base_model))

    def check(self, values: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None) -> None:
        """Check that values fit this adapter.

        Args:
            config: The `adapter_config.json` of the values; None assumes the same scaling.

        Raises:
            AdapterRefused: If a name, a shape or the scaling differs; the message names it.
        """
        key = self.differs_in(config) if config is not None else None
        if key is not None and config is not None:
            raise AdapterRefused(
                f"The loaded adapter has {key} {config.get(key)}, but the adapter being trained has "
                f"{getattr(self.config, key, None)}.",
                hint="Values of another rank or scale would change the model differently.",
            )
        missing = sorted(self.tensors.keys() - values.keys())
        unexpected = sorted(values.keys() - self.tensors.keys())
        if missing or unexpected:
            problem = (
                f"lacks {missing[0]}"
                if missing
                else f"has {unexpected[0]}, which the adapter being trained does not have"
            )
            raise AdapterRefused(
                f"The loaded adapter {problem}.",
                hint="All workers of a federation must adapt the same modules.",
                tensor=(missing or unexpected)[0],
            )
        for name, tensor in self.tensors.items():
            if values[name].shape != tensor.shape:
                raise AdapterRefused(
                    f"{name} has the shape {tuple(values[name].shape)}, and {tuple(tensor.shape)} in the adapter being "
                    "trained.",
                    tensor=name,
                )

    def differs_in(self, config: Mapping[str, Any]) -> str | None:
        """Return the setting in which this config scales values differently; None if there is none."""
        return next(
            (key for key in _SCALING if _plain(config.get(key)) != _plain(getattr(self.config, key, None))), None
        )


def _plain(value: Any) -> Any:
    # An empty pattern, a missing one and False are equivalent.
    return value or None


def unwrap_peft(model: Any) -> Any:
    """Return the `PeftModel` inside wrappers such as DDP or a compiled module."""
    inner = model
    while not isinstance(inner, PeftModel):
        below = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
        if not isinstance(below, nn.Module):
            raise ModelError(
                f"A federation averages adapters, and {type(model).__name__} has none.",
                hint="Create one with `peft.get_peft_model`, or pass a `peft_config` to the trainer.",
            )
        inner = below
    return inner


def read_adapter(folder: Path | str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read an adapter written by `save_pretrained` or published by a federation."""
    place = Path(folder).expanduser()
    for name in (WEIGHTS, CONFIG):
        if not (place / name).is_file():
            raise NotFoundError(f"{name} not found in {place}.", hint="Pass the folder of the unpacked adapter.")
    return load_file(place / WEIGHTS), json.loads((place / CONFIG).read_text(encoding="utf-8"))


def _published(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter by published name, as selected by PEFT."""
    # Without embeddings that were not adapted: PEFT would query the Hub to find out whether they were resized.
    saved = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    # PEFT returns views; the parameters themselves are needed to copy values into them.
    owners = {(each.data_ptr(), each.shape): each for each in model.parameters()}
    found = {key: owners.get((tensor.data_ptr(), tensor.shape), tensor) for key, tensor in saved.items()}
    away = next((key for key, tensor in found.items() if tensor.is_meta), None)
    if away is not None:
        raise ModelError(f"The tensor {away} of the adapter is offloaded.", hint="Train the adapter on one device.")
    return dict(sorted(found.items()))
