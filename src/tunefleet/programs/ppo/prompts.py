"""The prompts of a PPO training: found, read, tokenised; there is no demo data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefleet.errors import DataError
from tunefleet.programs.data.holdout import Duplicates
from tunefleet.programs.data.prompt_rows import Content, Reading, read_prompt
from tunefleet.programs.data.readers import Rows, numbered
from tunefleet.programs.data.shapes import Place
from tunefleet.programs.data.sources import open_rows
from tunefleet.programs.data.tokens import Encoder
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
        notes: What the rows have and the run does not use, in sentences.
        duplicates: Rows that are there more than once, if some are held out.
    """

    train: list[Prompt]
    held_out: list[Prompt]
    origin: str
    cut: int
    notes: tuple[str, ...] = ()
    duplicates: Duplicates | None = None


def open_prompts(spec: PpoSpec, inputs: Mapping[str, str], workspace: Path, encoder: Encoder, longest: int) -> Prompts:
    """Find the prompts of a spec.

    Args:
        spec: What the user wants.
        inputs: For each pointer into the spec, the local path that stands for it.
        workspace: Where archives may be unpacked.
        encoder: Of the model that is trained.
        longest: Of longer prompts the last tokens are kept, so many.

    Raises:
        DataError: If there are none, or one cannot be used.
        UnreachableError: If they are on a hub that does not answer.
    """
    found = open_rows(spec.data, inputs, workspace, lambda *_: _columns(spec), seed=spec.training.seed)
    how = Reading(found.origin, spec.data.separator)
    train, cut = _tokenized(spec, found.train, how, encoder, longest)
    how_others = replace(how, origin=found.held_out_origin)
    held_out, more = _tokenized(spec, found.held_out or [], how_others, encoder, longest)
    if not train:
        raise DataError(f"{found.origin} has no prompts.", hint="Name a dataset, split or slice that has some.")
    return Prompts(train, held_out, found.origin, cut + more, how.notes.sentences, found.duplicates)


def _tokenized(spec: PpoSpec, rows: Rows, how: Reading, encoder: Encoder, longest: int) -> tuple[list[Prompt], int]:
    prompts, cut = [], 0
    for number, row in numbered(rows):
        place = Place(number, how.origin)
        text, ids = encoder.ask(_words(spec, row, place, how), None, place)
        how.ignore_others(row, _columns(spec), number)
        if len(ids) > longest:
            cut += 1
            ids = ids[-longest:]
            text = encoder.tokenizer.decode(ids)  # the judge is to see what the model saw
        prompts.append(Prompt(ids, text))
    return prompts, cut


def _columns(spec: PpoSpec) -> tuple[str, ...]:
    data = spec.data
    if data.prompts is not None:
        return ("text",)
    if data.jsonl is None:
        return (data.prompt_column,)
    return tuple(name for name in (data.jsonl.query_field, data.jsonl.response_field) if name is not None)


def _words(spec: PpoSpec, row: Mapping[str, Any], place: Place, how: Reading) -> Content:
    """Return the prompt of a row: a text, or a list of messages."""
    name, *behind = _columns(spec)
    words = read_prompt(row, name, place, how)
    if not behind:
        return words
    more = read_prompt(row, behind[0], place, Reading(how.origin, "", how.notes))
    if not (isinstance(words, str) and isinstance(more, str)):
        raise DataError(f"{place} has messages, behind which no answer can stand.", hint="Leave response_field out.")
    return words + more
