"""The adapter that trains: its tensors by the names under which PEFT saves them.

Everything that goes up is copied from here, and everything that comes down is copied into it, so that an optimizer
keeps its parameters whatever is loaded.
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
_SCALING = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
"""What of a config says what the tensors mean in the model."""


class LiveAdapter:
    """A LoRA adapter of a model, seen by its published names."""

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.model = unwrapped(model)
        self.name = name or str(self.model.active_adapters[0])
        if self.name not in self.model.peft_config:
            known = ", ".join(self.model.peft_config)
            raise ModelError(f"The model has no adapter {self.name!r}.", hint=f"It has: {known}.")
        self.config = self.model.peft_config[self.name]
        if self.config.peft_type != PeftType.LORA:
            raise ModelError(f"The adapter {self.name!r} is {self.config.peft_type.value}; only LoRA is federated.")
        self.tensors = _published(self.model, self.name)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that an optimizer is to change."""
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad
        }

    def copied(self) -> dict[str, torch.Tensor]:
        """Return the values as they are now, on the device where they lie; nothing waits for it."""
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
        with tempfile.TemporaryDirectory(prefix="tunefleet-config-") as folder:
            config.save_pretrained(folder)
            read: dict[str, Any] = json.loads(Path(folder, CONFIG).read_text(encoding="utf-8"))
        return read

    def config_for(self, base_model: str | None = None) -> AdapterConfig:
        """Return the config as the server will read it."""
        return config_of(self.described(base_model))

    def check(self, values: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None) -> None:
        """Refuse values that are not this adapter's.

        Args:
            config: The `adapter_config.json` that they came with; None trusts them to be scaled alike.

        Raises:
            AdapterRefused: With what differs: a name, a shape, or how the product is scaled.
        """
        key = self.differs_in(config) if config is not None else None
        if key is not None and config is not None:
            raise AdapterRefused(
                f"The adapter that was loaded has {key} {config.get(key)}, and the one that trains has "
                f"{getattr(self.config, key, None)}.",
                hint="Values of another rank or scale mean another change to the model.",
            )
        lacking = sorted(self.tensors.keys() - values.keys())
        strange = sorted(values.keys() - self.tensors.keys())
        if lacking or strange:
            which = f"lacks {lacking[0]}" if lacking else f"has {strange[0]}, which the adapter that trains has not"
            raise AdapterRefused(
                f"The adapter that was loaded {which}.",
                hint="All workers of a federation adapt the same modules.",
                tensor=(lacking or strange)[0],
            )
        for name, tensor in self.tensors.items():
            if values[name].shape != tensor.shape:
                raise AdapterRefused(
                    f"{name} has the shape {tuple(values[name].shape)}, and {tuple(tensor.shape)} in the adapter that "
                    "trains.",
                    tensor=name,
                )

    def differs_in(self, config: Mapping[str, Any]) -> str | None:
        """Return which setting says that values with this config would be scaled otherwise here; None if none does."""
        return next(
            (key for key in _SCALING if _plain(config.get(key)) != _plain(getattr(self.config, key, None))), None
        )


def _plain(value: Any) -> Any:
    # An empty pattern, one that is not there, and false are the same.
    return value or None


def unwrapped(model: Any) -> Any:
    """Return the model of PEFT's inside what DDP, a compiler or a user put around it."""
    inner = model
    while not isinstance(inner, PeftModel):
        below = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
        if not isinstance(below, nn.Module):
            raise ModelError(
                f"A federation averages adapters, and {type(model).__name__} has none.",
                hint="Make one with `peft.get_peft_model`, or give the trainer a `peft_config`.",
            )
        inner = below
    return inner


def read_adapter(folder: Path | str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what `save_pretrained` wrote, or a federation published."""
    place = Path(folder).expanduser()
    for name in (WEIGHTS, CONFIG):
        if not (place / name).is_file():
            raise NotFoundError(f"There is no {name} in {place}.", hint="Name the folder that was unpacked.")
    return load_file(place / WEIGHTS), json.loads((place / CONFIG).read_text(encoding="utf-8"))


def _published(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter by published name; PEFT's own rules say what belongs to it.

    Embeddings that were not adapted are left out: whether they have grown would be asked of the hub.
    """
    saved = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    owners = {(each.data_ptr(), each.shape): each for each in model.parameters()}
    found = {key: owners.get((tensor.data_ptr(), tensor.shape), tensor) for key, tensor in saved.items()}
    away = next((key for key, tensor in found.items() if tensor.is_meta), None)
    if away is not None:
        raise ModelError(f"The tensor {away} of the adapter is not on this machine.", hint="Train it on one device.")
    return dict(sorted(found.items()))
