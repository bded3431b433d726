"""The evaluated model: a base model, a tuned model, or an adapter on a base; its weights are loaded once."""

from __future__ import annotations

import gc
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from tunefleet.workloads.common import base_model
from tunefleet.workloads.engine import weights
from tunefleet.workloads.engine.protocol import EngineModel
from tunefleet.workloads.engine.weights import Adapters
from tunefleet.workloads.inference.engines import runtime_adapters


class EvaluatedModel:
    """The evaluated model; loaded on first use, since a relaunch may have all items already."""

    def __init__(self, engine_model: EngineModel) -> None:
        self.engine_model = engine_model
        self._model: Any = None

    @property
    def adapter(self) -> str | None:
        """The name of the adapter that is not merged."""
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
        """The max sequence length of the model."""
        return base_model.context_length(self._source)

    @cached_property
    def vocabulary(self) -> int | None:
        """The number of token embeddings."""
        return base_model.embedding_rows(self._source)

    def model(self) -> Any:
        """Return the loaded model with its adapters, in eval mode.

        Raises:
            ModelError: If it cannot be loaded, or an adapter does not fit it.
        """
        if self._model is None:
            put_on = Adapters(weights.load(self._source, self.engine_model.options), self.engine_model.adapters)
            put_on.use(self.adapter)
            self._model = put_on.model.eval()
        return self._model

    def release(self) -> None:
        """Free the memory of the weights."""
        if self._model is not None:
            self._model = None
            # Reference cycles in the model would keep GPU memory alive.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
