"""The prompts of a PPO training: found, read, tokenised; there is no demo data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from tunefleet.errors import DataError, ModelError
from tunefleet.programs.data.readers import Rows
from tunefleet.programs.data.sources import open_rows
from tunefleet.spec import PpoSpec


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model reads it, and as the reward model does."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a training.

    Args:
        train: Those that are trained with.
        held_out: Those that are measured with.
        origin: What the user calls the data.
        cut: How many were longer than allowed.
    """

    train: list[Prompt]
    held_out: list[Prompt]
    origin: str
    cut: int


def open_prompts(
    spec: PpoSpec, inputs: Mapping[str, str], workspace: Path, tokenizer: PreTrainedTokenizerBase, longest: int
) -> Prompts:
    """Find the prompts of a spec.

    Args:
        spec: What the user wants.
        inputs: For each pointer into the spec, the local path that stands for it.
        workspace: Where archives may be unpacked.
        tokenizer: Of the model that is trained.
        longest: Of longer prompts the last tokens are kept, so many.

    Raises:
        DataError: If there are none, or one cannot be used.
        UnreachableError: If they are on a hub that does not answer.
    """
    found = open_rows(spec.data, inputs, workspace, seed=spec.training.seed)
    train, cut = _tokenized(spec, found.train, found.origin, tokenizer, longest)
    held_out, more = _tokenized(spec, found.held_out or [], found.held_out_origin, tokenizer, longest)
    if not train:
        raise DataError(f"{found.origin} has no prompts.", hint="Name a dataset, split or slice that has some.")
    return Prompts(train, held_out, found.origin, cut + more)


def _tokenized(
    spec: PpoSpec, rows: Rows, origin: str, tokenizer: PreTrainedTokenizerBase, longest: int
) -> tuple[list[Prompt], int]:
    prompts, cut = [], 0
    for number, row in enumerate(rows, 1):
        ids, text = _ids(_words(spec, row, f"Row {number} of {origin}"), tokenizer)
        if len(ids) > longest:
            cut += 1
            ids = ids[-longest:]
            text = tokenizer.decode(ids)  # the judge is to see what the model saw
        prompts.append(Prompt(ids, text))
    return prompts, cut


def _words(spec: PpoSpec, row: Mapping[str, Any], where: str) -> Any:
    """Return the prompt of a row: a text, or a list of messages."""
    data = spec.data
    if data.prompts is not None:
        return row["text"] + data.separator
    name, behind = data.prompt_column, None
    key = "data.prompt_column"
    if data.jsonl is not None:
        name, behind, key = data.jsonl.query_field, data.jsonl.response_field, "data.jsonl.query_field"
    value = _field(row, name, where, key)
    if behind is None:
        return value + data.separator if isinstance(value, str) else value
    more = _field(row, behind, where, "data.jsonl.response_field")
    if not (isinstance(value, str) and isinstance(more, str)):
        raise DataError(f"{where} has messages, behind which no answer can stand.", hint="Leave response_field out.")
    return value + data.separator + more


def _field(row: Mapping[str, Any], name: str, where: str, key: str) -> Any:
    if name not in row:
        raise DataError(
            f"{where} has no field {name!r}.", hint=f"It has {', '.join(sorted(row)) or 'none'}; name one in {key}."
        )
    value = row[name]
    messages = isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value)
    if not messages and (not isinstance(value, str) or not value):
        raise DataError(f"{where} has neither a text nor messages in {name!r}.", hint=f"Name another one in {key}.")
    return value


def _ids(words: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], str]:
    if not isinstance(words, str):
        if tokenizer.chat_template is None:
            raise ModelError(
                "The prompts are messages, and the model's tokenizer has no chat template.",
                hint="Give plain texts, or a model that was made for chats.",
            )
        words = tokenizer.apply_chat_template(words, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(words, add_special_tokens=False)["input_ids"]), words
    ids = list(tokenizer(words)["input_ids"])
    # Some tokenizers end each text; behind an end nothing is to be said.
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]
    return ids, words
