"""Opens an embedding model: one of sentence-transformers, or any model with pooling over its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from tunefleet.errors import InputError, ModelError
from tunefleet.spec.base import is_written_as_path
from tunefleet.spec.tasks.retrieval import VectorSpec
from tunefleet.workloads.common import base_model, containment
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.embedding.model_source import Loading, Model, Vectors
from tunefleet.workloads.embedding.pooling import offsets_of

# Marks a folder of sentence-transformers.
MODULES = "modules.json"
# Tokenizers without a limit report a number beyond this.
_NO_LIMIT: Final = 1 << 24


class Encoder:
    """Computes vectors with the options of a spec."""

    def __init__(self, model: Model, options: VectorSpec) -> None:
        self.model = model
        self._options = options
        self.tokens = 0
        self.cut = 0

    @property
    def dimension(self) -> int:
        """Size of a vector."""
        return self.model.dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one row of float32 for each text; adds to the counters `tokens` and `cut` (truncated texts).

        Raises:
            ModelError: If the model returns values that are not finite.
        """
        shortened = [self._shortened(self._options.prefix + text) for text in texts]
        found = np.asarray(self.model.vectors(shortened, self._options.batch_size), dtype=np.float32)
        if not np.isfinite(found).all():
            raise ModelError(
                "The model returns vectors with values that are not finite.",
                hint="Load it with dtype: float32; half precision may not be enough for it.",
            )
        if self._options.normalize:
            lengths = np.linalg.norm(found, axis=1, keepdims=True)
            # The smallest float avoids a division by zero for a zero vector.
            found = found / np.maximum(lengths, np.finfo(np.float32).tiny)
        return np.ascontiguousarray(found, dtype=np.float32)

    def count(self, texts: Sequence[str]) -> None:
        """Count tokens and truncated texts of texts whose vectors are already computed."""
        for text in texts:
            self._shortened(self._options.prefix + text)

    def _shortened(self, text: str) -> str:
        places = self.model.offsets(text)
        limits = [each for each in (self._options.max_length, self.model.longest) if each is not None]
        most = min(limits, default=len(places))
        self.tokens += min(len(places), most)
        if len(places) <= most:
            return text
        self.cut += 1
        # Cut by character offsets, at a token boundary.
        return text[: places[most - 1][1]]


def open_encoder(
    identifier: str,
    local: str | None,
    options: VectorSpec,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    loading: Loading | None = None,
) -> Encoder:
    """Find and load a model."""
    source = _locate(identifier, local, revision=revision, trust_remote_code=trust_remote_code)
    how = loading or Loading()
    if not _has_modules(source):
        from tunefleet.workloads.embedding.pooling import PooledModel

        return Encoder(PooledModel(source, options.pooling, how), options)
    if options.pooling != "auto":
        raise InputError(
            f"spec.embedding.pooling has no effect: {identifier} defines its own pooling.",
            hint="Remove it.",
        )

    return Encoder(SentenceModel(source, how), options)


def _locate(identifier: str, local: str | None, *, revision: str | None, trust_remote_code: bool) -> Source:
    if local is None and not is_written_as_path(identifier):
        return base_model.locate(identifier, None, revision=revision, trust_remote_code=trust_remote_code)
    folder = Path(local or identifier).expanduser()
    if (folder / MODULES).is_file():
        containment.check_model(folder)
        return Source(identifier, str(folder), None, trust_remote_code)
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{identifier} is an adapter, not a model.", hint="Merge it into its base with a `merge` task first."
        )
    return base_model.locate(identifier, local, revision=revision, trust_remote_code=trust_remote_code)


def _has_modules(source: Source) -> bool:
    if Path(source.path).is_dir():
        return (Path(source.path) / MODULES).is_file()
    try:
        hf_hub_download(source.path, MODULES, revision=source.revision)
    # A subclass of EntryNotFoundError: offline, so the answer is unknown.
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return False
    return True


class SentenceModel:
    """A model of sentence-transformers."""

    library = "sentence-transformers"
    longest: int | None

    def __init__(self, source: Source, loading: Loading) -> None:
        # Models with pooling of our own need no sentence-transformers, which takes seconds to import.
        from sentence_transformers import SentenceTransformer

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
                hint="Check that the folder or Hub name holds a model of sentence-transformers.",
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
        """Return the character offsets of the tokens of a text."""
        return offsets_of(self._tokenizer, text)

    def _around(self) -> int:
        count = getattr(self._tokenizer, "num_special_tokens_to_add", None)
        return int(count()) if count is not None else 0
