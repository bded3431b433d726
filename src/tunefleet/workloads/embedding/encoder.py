"""An embedding model: its interface, models of sentence-transformers, and any model with pooling over its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from transformers import AutoModel

from tunefleet.errors import InputError, ModelError
from tunefleet.spec.base import is_written_as_path
from tunefleet.spec.tasks.retrieval import VectorSpec
from tunefleet.workloads.common import base_model, containment
from tunefleet.workloads.common.base_model import Source, context_length, load_tokenizer, loading_error

# Marks a folder of sentence-transformers.
MODULES = "modules.json"
# Tokenizers without a limit report a number beyond this.
_NO_LIMIT: Final = 1 << 24
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Loading:
    """How weights are loaded; by default whatever suits the machine best."""

    dtype: str = "auto"
    attention: str | None = None
    device: str = "auto"

    def place(self) -> str:
        """Return the device for the computation."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return self.device

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `from_pretrained`."""
        exact = "bfloat16" if self.place() == "cuda" and torch.cuda.is_bf16_supported() else "float32"
        dtype = getattr(torch, exact if self.dtype == "auto" else self.dtype)
        return {"dtype": dtype} | ({"attn_implementation": self.attention} if self.attention else {})


class Model(Protocol):
    """A loaded model."""

    library: str
    """`sentence-transformers` or `transformers`."""
    dimension: int
    """Size of a vector."""
    longest: int | None
    """Max sequence length; None without a limit."""

    def vectors(self, texts: Sequence[str], batch_size: int) -> Vectors:
        """Return one row for each text, as the model returns it."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character offsets of the tokens of a text."""
        ...


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
        return _offsets_of(self._tokenizer, text)

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


def _offsets_of(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Return the character offsets of the tokens of a text."""
    if hasattr(tokenizer, "encode_batch"):  # a bare tokenizer of the tokenizers library
        return [(int(begin), int(end)) for begin, end in tokenizer.encode(text, add_special_tokens=False).offsets]
    if not tokenizer.is_fast:
        raise ModelError("The model's tokenizer has no character offsets.", hint="Use a model with a tokenizer.json.")
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [(int(begin), int(end)) for begin, end in found["offset_mapping"]]


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
                f"Model {source.identifier} cannot be loaded: {first}",
                hint="Check that the folder or Hub repository contains a sentence-transformers model.",
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
        return _offsets_of(self._tokenizer, text)

    def _around(self) -> int:
        count = getattr(self._tokenizer, "num_special_tokens_to_add", None)
        return int(count()) if count is not None else 0
