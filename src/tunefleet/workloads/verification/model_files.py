"""Integrity of a model's files, and its tokenizer: vocabulary, special tokens, chat template. Reads no weight."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tunefleet.errors import ModelError
from tunefleet.workloads.common import base_model
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.merging.safetensors_reader import Tensor, TensorFile, model_files

_INDEX: Final = "model.safetensors.index.json"
_CONFIG: Final = "config.json"
_BITS: Final = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Bits per value of a dtype; for any other dtype only the position is checked."""
_FETCH: Final = "Download it again: delete its folder in the Hub's cache, or copy the missing files."
SPECIAL: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
CONFIGS: Final = ("config.json", "generation_config.json")
"""Files of a model that name special tokens."""
_PROBE: Final = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}]
_TEMPLATE_HINT: Final = "Use another tokenizer (tokenizer_id of a campaign, model.tokenizer of a verify task)."


@dataclass(frozen=True, slots=True)
class Files:
    """The weights of a model, from the file headers."""

    files: tuple[TensorFile, ...]
    tensors: dict[str, Tensor]

    @property
    def size_bytes(self) -> int:
        """Size of all weights."""
        return sum(each.size_bytes for each in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(each.shape) for each in self.tensors.values())

    @property
    def dtypes(self) -> list[str]:
        """The dtypes, by their safetensors names."""
        return sorted({each.dtype for each in self.tensors.values()})


def check(folder: Path) -> Files:
    """Check the files of a model.

    Raises:
        ModelError: If a file is missing, truncated, or does not match the index.
    """
    _json(folder / _CONFIG)
    files = model_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        _check_places(file)
        for tensor in file.tensors:
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise ModelError(f"Both {other} and {file.path.name} hold {tensor.name}.", hint=_FETCH)
            tensors[tensor.name] = tensor
    if not tensors:
        raise ModelError(f"The files of the model contain no weights: {files[0].path.name} is empty.", hint=_FETCH)
    if (folder / _INDEX).is_file():
        _check_index(_json(folder / _INDEX), tensors)
    return Files(tuple(files), tensors)


def _check_places(file: TensorFile) -> None:
    """Check that each tensor has the size of its shape, and that there are no gaps or overlaps."""
    # safetensors requires the tensors to fill the data section without gaps.
    at = len(file.header)
    for tensor in file.tensors:
        bits = _BITS.get(tensor.dtype)
        if bits is not None and math.prod(tensor.shape) * bits != tensor.size_bytes * 8:
            raise ModelError(
                f"{file.path.name} has {tensor.size_bytes} bytes for {tensor.name}, {tensor.dtype} of the shape "
                f"{list(tensor.shape)}.",
                hint=_FETCH,
            )
        if tensor.offset != at:
            raise ModelError(f"{file.path.name} is damaged: {tensor.name} is at the wrong offset.", hint=_FETCH)
        at += tensor.size_bytes


def _check_index(index: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    placed: dict[str, str] = index["weight_map"]
    for name, file in sorted(placed.items()):
        if name not in tensors:
            raise ModelError(f"{_INDEX} says that {file} contains {name}, which is in no file.", hint=_FETCH)
        if tensors[name].path.name != file:
            raise ModelError(
                f"{_INDEX} says that {file} contains {name}, but {tensors[name].path.name} does.", hint=_FETCH
            )
    unknown = sorted(set(tensors) - set(placed))
    if unknown:
        where = tensors[unknown[0]].path.name
        raise ModelError(f"{where} holds {unknown[0]}, which is not in {_INDEX}.", hint=_FETCH)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"The model's {path.name} cannot be read: {error}", hint=_FETCH) from error
    if not isinstance(found, dict):
        raise ModelError(f"The model's {path.name} does not hold a JSON object.", hint=_FETCH)
    return found


def embedding_rows(weights: Files, names: Sequence[str]) -> int | None:
    """Return the number of rows of the stored embeddings; None if the files use another name."""
    found = next((weights.tensors[name] for name in names if name in weights.tensors), None)
    return None if found is None else found.rows


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenizer that matches its model."""

    tokenizer: PreTrainedTokenizerBase
    count: int
    highest: int
    chat_template: bool


def check_tokenizer(source: Source, rows: int, *, chat: bool) -> Tokens:
    """Check a tokenizer against the embeddings of a model.

    Raises:
        ModelError: If there is none, a token has no embedding, or a chat cannot be rendered.
    """
    tokenizer = base_model.load_tokenizer(source)
    ids: dict[str, int] = tokenizer.get_vocab()
    # The highest id matters, not the count: ids may have gaps.
    token, highest = max(ids.items(), key=lambda pair: pair[1], default=("", -1))
    if highest < 0:
        raise ModelError(f"The tokenizer of {source.identifier} has no tokens.")
    if highest >= rows:
        raise ModelError(
            f"The tokenizer of {source.identifier} has the token {token!r} at {highest}, but the model has embeddings "
            f"for {rows} tokens.",
            hint="Use a tokenizer that matches the model; embeddings are not resized.",
        )
    template = tokenizer.chat_template is not None
    if chat:
        _check_chat(source, tokenizer, template=template)
    return Tokens(tokenizer, len(ids), highest, template)


def check_special(folder: Path, rows: int) -> None:
    """Check that the special tokens in a model's own files have embeddings."""
    for name, key, value in _special(folder):
        # Some models use -1 for a missing token.
        if not -1 <= value < rows:
            raise ModelError(
                f"The model's {name} has {key}: {value}, but the model has embeddings for {rows} tokens.",
                hint="Fix that file, or use another model.",
            )


def _special(folder: Path) -> Iterator[tuple[str, str, int]]:
    for name in CONFIGS:
        path = folder / name
        if not path.is_file():
            continue
        try:
            config: Any = json.loads(path.read_bytes())
        except ValueError as error:
            raise ModelError(f"The model's {name} cannot be read: {error}") from error
        for key in SPECIAL:
            value = config.get(key)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, int):
                    yield name, key, each


def _check_chat(source: Source, tokenizer: PreTrainedTokenizerBase, *, template: bool) -> None:
    if not template:
        raise ModelError(
            f"The tokenizer of {source.identifier} has no chat template, but the rows are chats.", hint=_TEMPLATE_HINT
        )
    try:
        written = tokenizer.apply_chat_template(_PROBE, tokenize=False)
    except (TemplateError, ValueError, TypeError) as error:
        raise ModelError(
            f"The chat template of {source.identifier} cannot render a question and its answer: {error}",
            hint=_TEMPLATE_HINT,
        ) from error
    if _PROBE[1]["content"] not in str(written):
        raise ModelError(f"The chat template of {source.identifier} omits the answer.", hint=_TEMPLATE_HINT)
