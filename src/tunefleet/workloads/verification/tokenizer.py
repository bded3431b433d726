"""Checks a tokenizer against a model: vocabulary, special tokens, and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tunefleet.errors import ModelError
from tunefleet.workloads.common import base_model
from tunefleet.workloads.common.base_model import Source

SPECIAL: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
CONFIGS: Final = ("config.json", "generation_config.json")
"""Files of a model that name special tokens."""
_PROBE: Final = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}]
_TEMPLATE_HINT: Final = "Use another tokenizer (tokenizer_id of a campaign, model.tokenizer of a verify task)."


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenizer that matches its model."""

    tokenizer: PreTrainedTokenizerBase
    count: int
    highest: int
    chat_template: bool


def check(source: Source, rows: int, *, chat: bool) -> Tokens:
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
