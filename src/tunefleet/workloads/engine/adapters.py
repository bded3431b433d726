"""LoRA adapters on a model: some merged into its weights, others selected by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from tunefleet.errors import ModelError
from tunefleet.workloads.common.base_model import require_same_vocabulary
from tunefleet.workloads.engine.protocol import EngineAdapter

logger = logging.getLogger(__name__)


class Adapters:
    """The adapters of a model, and which one is active."""

    def __init__(self, model: PreTrainedModel, adapters: Sequence[EngineAdapter]) -> None:
        self.model = model
        self._active: str | None = None
        self._peft_model: Any = None
        for number, adapter in enumerate(each for each in adapters if each.merge):
            self.model = self._load(adapter, f"merged{number}").merge_and_unload(safe_merge=True)
            self._peft_model = None
            logger.info("The adapter %s is merged into the weights", adapter.name)
        # PEFT uses adapter names as module names, which may not contain every character.
        self._inner = {each.name: f"a{at}" for at, each in enumerate(each for each in adapters if not each.merge)}
        for adapter in adapters:
            if not adapter.merge:
                self._load(adapter, self._inner[adapter.name])
        if self._peft_model is not None:
            # PEFT has replaced layers inside the base model, which therefore runs with the active adapter.
            self.model = self._peft_model.get_base_model()
            self._peft_model.base_model.disable_adapter_layers()
            self.model.requires_grad_(requires_grad=False)
            self.model.eval()

    @property
    def names(self) -> list[str]:
        """The adapter names that requests may use."""
        return list(self._inner)

    def use(self, name: str | None) -> None:
        """Activate one adapter and deactivate the others.

        Args:
            name: One of `names`; None for the base model.
        """
        if name == self._active or self._peft_model is None:
            return
        if name is None:
            self._peft_model.base_model.disable_adapter_layers()
        else:
            if self._active is None:
                self._peft_model.base_model.enable_adapter_layers()
            self._peft_model.base_model.set_adapter(self._inner[name])
        self._active = name

    def _load(self, adapter: EngineAdapter, name: str) -> Any:
        require_same_vocabulary(Path(adapter.path), self.model.get_input_embeddings().weight.shape[0], adapter.name)
        try:
            if self._peft_model is None:
                self._peft_model = PeftModel.from_pretrained(self.model, adapter.path, adapter_name=name)
            else:
                self._peft_model.load_adapter(adapter.path, adapter_name=name)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(
                f"The adapter {adapter.name} cannot be loaded onto this model: {(str(error).splitlines() or [''])[0]}",
                hint="It must be a LoRA adapter that was trained on the same base model.",
                detail=str(error),
            ) from error
        if adapter.scale != 1:
            for module in self._peft_model.modules():
                if isinstance(module, LoraLayer):
                    module.set_scale(name, adapter.scale)
        return self._peft_model
