"""The prompts of a PPO run: located, read and tokenized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunefleet.analysis.dataset.parts import Parts
from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.errors import DataError
from tunefleet.spec import PpoSpec
from tunefleet.workloads.data.formats import Content, Place, Shape, prompt_of
from tunefleet.workloads.data.holdout import Duplicates
from tunefleet.workloads.data.readers import Rows, numbered
from tunefleet.workloads.data.sources import open_rows
from tunefleet.workloads.data.tokenization import Encoder


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens for the policy and as text for the reward model."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """The train and eval prompts of a run."""

    train: list[Prompt]
    held_out: list[Prompt]
    origin: str
    cut: int
    notes: tuple[str, ...] = ()
    duplicates: Duplicates | None = None


def open_prompts(spec: PpoSpec, inputs: Mapping[str, str], workspace: Path, encoder: Encoder, longest: int) -> Prompts:
    """Load and tokenize the prompts of a spec."""
    recognized = Recognized("prompt", _columns(spec))
    found = open_rows(spec.data, inputs, workspace, lambda *_: recognized.columns, seed=spec.training.seed)
    shape = Shape(recognized, found.origin, spec.data.separator)
    train, cut = _tokenized(found.train, shape, encoder, longest)
    others = Shape(recognized, found.held_out_origin, spec.data.separator, shape.notes)
    held_out, more = _tokenized(found.held_out or [], others, encoder, longest)
    if not train:
        raise DataError(f"{found.origin} has no prompts.", hint="Choose a dataset, split or slice with rows.")
    return Prompts(train, held_out, found.origin, cut + more, shape.notes.sentences, found.duplicates)


def _tokenized(rows: Rows, shape: Shape, encoder: Encoder, longest: int) -> tuple[list[Prompt], int]:
    prompts, cut = [], 0
    for parts, place in shape.parts(numbered(rows)):
        text, ids = encoder.ask(_content(parts, shape.separator, place), parts.tools, place)
        if len(ids) > longest:
            cut += 1
            ids = ids[-longest:]
            text = encoder.tokenizer.decode(ids)  # the reward model must see the same prompt as the policy
        prompts.append(Prompt(ids, text))
    return prompts, cut


def _columns(spec: PpoSpec) -> dict[str, str]:
    """Return the columns of the prompt, and of an answer prefix that follows it."""
    data = spec.data
    if data.prompts is not None:
        return {"prompt": "text"}
    if data.jsonl is None:
        return {"prompt": data.prompt_column}
    response = data.jsonl.response_field
    return {"prompt": data.jsonl.query_field, **({"reference": response} if response is not None else {})}


def _content(parts: Parts, separator: str, place: Place) -> Content:
    """Return the prompt of a row, with the answer prefix that follows it."""
    prompt = prompt_of(parts, separator)
    if not parts.answer:
        return prompt
    if not isinstance(prompt, str):
        raise DataError(
            f"{place} has messages, to which no response can be appended.", hint="Leave response_field out."
        )
    return prompt + str(parts.answer[0]["content"])
