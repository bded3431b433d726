"""Which model is evaluated: a base, a tuned model in its place, an adapter on it; its weights are loaded once."""

from __future__ import annotations

import gc
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from tunefleet.workloads.common import base_model
from tunefleet.workloads.engine import weights
from tunefleet.workloads.engine.adapters import Adapters
from tunefleet.workloads.engine.protocol import EngineModel
from tunefleet.workloads.inference.weights import runtime_adapters


class Subject:
    """The model that is evaluated; loaded when it is first needed, since a killed run may have all items already."""

    def __init__(self, engine_model: EngineModel) -> None:
        self.engine_model = engine_model
        self._model: Any = None

    @property
    def adapter(self) -> str | None:
        """The name of the adapter that stays apart."""
        return next(iter(runtime_adapters(self.engine_model)), None)

    @property
    def _source(self) -> base_model.Source:
        model = self.engine_model
        return base_model.Source(model.identifier, model.path, model.revision, model.trust_remote_code)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return base_model.load_tokenizer(self._source)

    @cached_property
    def context(self) -> int | None:
        """The longest sequence that it knows positions for."""
        return base_model.context_length(self._source)

    @cached_property
    def vocabulary(self) -> int | None:
        """The number of tokens that it has embeddings for."""
        return base_model.embedding_rows(self._source)

    def model(self) -> Any:
        """Return the loaded model with its adapters, ready to compute.

        Raises:
            ModelError: If it cannot be loaded, or an adapter does not fit it.
        """
        if self._model is None:
            put_on = Adapters(weights.load(self._source, self.engine_model.options), self.engine_model.adapters)
            put_on.use(self.adapter)
            self._model = put_on.model.eval()
        return self._model

    def release(self) -> None:
        """Give the weights' memory back."""
        if self._model is not None:
            self._model = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
