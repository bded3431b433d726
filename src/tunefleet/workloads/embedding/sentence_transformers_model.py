"""A model of sentence-transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from sentence_transformers import SentenceTransformer

from tunefleet.errors import ModelError
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.embedding.model_source import Loading, Vectors
from tunefleet.workloads.embedding.pooling import offsets_of

# Tokenizers that know no limit name a number beyond this.
_NO_LIMIT: Final = 1 << 24


class SentenceModel:
    """Loads it and makes vectors with it."""

    library = "sentence-transformers"
    longest: int | None

    def __init__(self, source: Source, loading: Loading) -> None:
        try:
            self._model = SentenceTransformer(
                source.path,
                device=loading.place(),
                revision=source.revision,
                trust_remote_code=source.trust_remote_code,
                model_kwargs=loading.arguments(),
            )
        except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(
                f"The model {source.identifier} cannot be loaded: {first}",
                hint="Check that the folder or hub name holds a model of sentence-transformers.",
                detail=str(error),
            ) from error
        self._tokenizer: Any = self._model.tokenizer
        self.dimension = int(self._model.get_embedding_dimension() or 0)
        longest = self._model.max_seq_length
        self.longest = None
        if longest is not None and not math.isinf(longest) and longest < _NO_LIMIT:
            self.longest = int(longest) - self._around()

    def vectors(self, texts: Sequence[str], batch_size: int) -> Vectors:
        """Return one row for each text."""
        found: Vectors = self._model.encode(
            list(texts), batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True
        )
        return found

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return where the tokens of a text begin and end."""
        return offsets_of(self._tokenizer, text)

    def _around(self) -> int:
        count = getattr(self._tokenizer, "num_special_tokens_to_add", None)
        return int(count()) if count is not None else 0
