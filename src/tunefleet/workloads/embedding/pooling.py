"""Vectors of a model without an embedding head: pooling over its token states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import AutoModel

from tunefleet.errors import ModelError
from tunefleet.workloads.common.base_model import Source, context_length, load_tokenizer, loading_error
from tunefleet.workloads.embedding.model_source import Loading, Vectors


class PooledModel:
    """Loads a model without its head and pools its token states."""

    library = "transformers"

    def __init__(self, source: Source, pooling: Literal["auto", "mean", "cls", "last"], loading: Loading) -> None:
        self._tokenizer = load_tokenizer(source)
        self._pooling = "mean" if pooling == "auto" else pooling
        try:
            model = AutoModel.from_pretrained(
                source.path,
                revision=source.revision,
                trust_remote_code=source.trust_remote_code,
                **loading.arguments(),
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise loading_error("model", source, error) from error
        self._model: Any = model.to(loading.place()).eval()
        self.dimension = int(model.config.get_text_config().hidden_size)
        self._most = _positions(self._model, context_length(source))
        around = self._tokenizer.num_special_tokens_to_add()
        self.longest = self._most - around if self._most is not None else None

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], batch_size: int) -> Vectors:
        """Return one row for each text; texts of similar length are batched, which saves padding."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        rows: list[torch.Tensor] = [torch.empty(0)] * len(texts)
        for begin in range(0, len(order), batch_size):
            places = order[begin : begin + batch_size]
            for place, vector in zip(places, self._batch([texts[at] for at in places]), strict=True):
                rows[place] = vector
        found: Vectors = torch.stack(rows).numpy()
        return found

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character offsets of the tokens of a text."""
        return offsets_of(self._tokenizer, text)

    def _batch(self, texts: list[str]) -> torch.Tensor:
        # A text truncated between tokens may be tokenized into more tokens than before.
        fed = self._tokenizer(
            texts,
            padding=True,
            truncation=self._most is not None,
            max_length=self._most,
            return_tensors="pt",
            return_token_type_ids=False,
        )
        if fed["input_ids"].shape[1] == 0:  # only empty texts, and a tokenizer without special tokens
            return torch.zeros(len(texts), self.dimension)
        fed = {name: value.to(self._model.device) for name, value in fed.items()}
        # In float32: a mean over many tokens loses precision in half precision.
        states = self._model(**fed).last_hidden_state.float()
        mask = fed["attention_mask"]
        if self._pooling == "cls":
            pooled = states[:, 0]
        elif self._pooling == "last":
            pooled = states[torch.arange(len(texts)), (mask.sum(1) - 1).clamp(min=0)]
        else:
            kept = mask.unsqueeze(-1).float()
            pooled = (states * kept).sum(1) / kept.sum(1).clamp(min=1)
        result: torch.Tensor = pooled.cpu()
        return result


def _positions(model: Any, named: int | None) -> int | None:
    """Return the max sequence length; in RoBERTa-like models, the first positions are reserved."""
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            # Positions start after the one for padding.
            positions = int(part.num_embeddings) - int(part.padding_idx) - 1
            return positions if named is None else min(positions, named)
    return named


def offsets_of(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Return the character offsets of the tokens of a text."""
    if hasattr(tokenizer, "encode_batch"):  # a bare tokenizer of the tokenizers library
        return [(int(begin), int(end)) for begin, end in tokenizer.encode(text, add_special_tokens=False).offsets]
    if not tokenizer.is_fast:
        raise ModelError("The model's tokenizer has no character offsets.", hint="Use a model with a tokenizer.json.")
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [(int(begin), int(end)) for begin, end in found["offset_mapping"]]
