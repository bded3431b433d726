"""The vocabulary of a merged model, checked before any weight is read, and its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer

from tunefleet.errors import ModelError
from tunefleet.workloads.merging.lora import Adapter
from tunefleet.workloads.merging.plan import Plan
from tunefleet.workloads.merging.safetensors_reader import is_weights

_TOKENIZER: Final = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_MORE_TEMPLATES: Final = "additional_chat_templates"
_TELLING: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json", "vocab.txt")
"""Every tokenizer has one of these files."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a merged model.

    Args:
        folder: The folder of the tokenizer; None if there is none.
        tokens: Number of tokens, including added ones; None without a tokenizer.
    """

    folder: Path | None
    origin: str
    tokens: int | None
    differing: tuple[str, ...] = ()


def choose(base: Path, adapters: Sequence[Adapter]) -> Vocabulary:
    """Choose the tokenizer of the merged model: an adapter's if it has one, else the base's.

    Raises:
        ModelError: If two of them have different vocabularies, or a tokenizer cannot be read.
    """
    having = [(each.label, each.folder) for each in adapters if _has_tokenizer(each.folder)]
    if not having:
        own = base if _has_tokenizer(base) else None
        return Vocabulary(own, "base", None if own is None else len(_tokens(own, "base model")))
    first, folder = having[0]
    tokens = _tokens(folder, first)
    for label, other in having[1:]:
        _check_same(tokens, _tokens(other, label), first, label)
    templates = {label: _template(other) for label, other in having}
    differing = tuple(label for label, text in templates.items() if text != templates[first])
    if _has_tokenizer(base):
        _check_extends(_tokens(base, "base model"), tokens, first)
    return Vocabulary(folder, first, len(tokens), differing)


def check(vocabulary: Vocabulary, rows: int) -> None:
    """Check that the model has an embedding for each token.

    Raises:
        ModelError: If an embedding is missing.
    """
    if vocabulary.tokens is not None and vocabulary.tokens > rows:
        raise ModelError(
            f"The tokenizer of {vocabulary.origin} has {vocabulary.tokens} tokens, and the merged model would have "
            f"embeddings for {rows}.",
            hint="The tokens were added after the embeddings were saved: save the adapter with "
            "`save_embedding_layers=True`, or remove its tokenizer files.",
        )


def carry(base: Path, target: Path, vocabulary: Vocabulary, plan: Plan) -> None:
    """Copy everything but the weights to the merged model's folder: config, tokenizer, template, generation config."""
    replaced = vocabulary.folder is not None and vocabulary.folder != base
    for path in sorted(base.iterdir()):
        if not path.is_file() or path.name.startswith(".") or is_weights(path.name):
            continue
        # Files of two tokenizers must not be mixed.
        if not (replaced and path.name in _TOKENIZER):
            shutil.copyfile(path, target / path.name)
    carry_tokenizer(vocabulary, target)
    if plan.config:
        config: dict[str, Any] = json.loads((target / "config.json").read_bytes())
        (target / "config.json").write_text(json.dumps(_changed(config, plan.config), indent=2) + "\n", "utf-8")


def carry_tokenizer(vocabulary: Vocabulary, target: Path) -> None:
    """Copy the tokenizer's files and its chat templates to a folder."""
    if vocabulary.folder is None:
        return
    for name in _TOKENIZER:
        if (vocabulary.folder / name).is_file():
            shutil.copyfile(vocabulary.folder / name, target / name)
    more = vocabulary.folder / _MORE_TEMPLATES
    if more.is_dir():
        shutil.copytree(more, target / _MORE_TEMPLATES, dirs_exist_ok=True)


def _changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Change keys where they are: in a multimodal model, they are in `text_config`."""
    if "dtype" in changes:
        config = {**_without_dtype(config), "dtype": changes["dtype"]}
        changes = {name: value for name, value in changes.items() if name != "dtype"}
    inner = config.get("text_config")
    if isinstance(inner, dict):
        below = {name: value for name, value in changes.items() if name in inner or name not in config}
        config = {**config, "text_config": {**inner, **below}}
        changes = {name: value for name, value in changes.items() if name in config or name not in below}
    return {**config, **changes}


def _without_dtype(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the base's dtype, also under its older name, at every depth."""
    return {
        name: _without_dtype(value) if isinstance(value, dict) and name.endswith("_config") else value
        for name, value in config.items()
        if name not in {"dtype", "torch_dtype"}
    }


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TELLING)


def _tokens(folder: Path, label: str) -> dict[str, int]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"The tokenizer of the {label} cannot be loaded: {str(error).splitlines()[0]}") from error
    found: dict[str, int] = tokenizer.get_vocab()
    return found


def _template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    try:
        found = json.loads((folder / "tokenizer_config.json").read_bytes()).get("chat_template")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, str) else None


def _check_same(tokens: dict[str, int], others: dict[str, int], first: str, label: str) -> None:
    if tokens == others:
        return
    odd = sorted(set(tokens.items()) ^ set(others.items()), key=lambda pair: pair[1])
    raise ModelError(
        f"The {first} and the {label} have different vocabularies ({len(tokens)} and {len(others)} tokens; they differ "
        f"in {odd[0][0]!r} at {odd[0][1]}).",
        hint="Adapters can be merged only if their tokens mean the same.",
    )


def _check_extends(base: dict[str, int], tokens: dict[str, int], label: str) -> None:
    moved = sorted((at, token) for token, at in base.items() if tokens.get(token) != at)
    if moved:
        at, token = moved[0]
        raise ModelError(
            f"The tokenizer of the {label} does not match the base model: it has {token!r} not at {at}.",
            hint="Name the base that the adapter was trained on (base_model_name_or_path in its config).",
        )
