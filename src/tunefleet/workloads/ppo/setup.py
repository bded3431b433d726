"""Derives a PPO run from its spec: the prompts, the number of steps, the prompts of each step, sampling parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefleet.analysis.dataset.parts import Parts
from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.errors import DataError
from tunefleet.spec import PpoSpec
from tunefleet.workloads.data.formats import Content, Place, Shape, prompt_of
from tunefleet.workloads.data.holdout import Duplicates
from tunefleet.workloads.data.readers import Rows, numbered
from tunefleet.workloads.data.sources import open_rows
from tunefleet.workloads.data.tokenization import Encoder

# Default answer length.
_TOKENS = 64
# Early stopping tolerates fluctuations of a batch above `target_kl`.
_KL_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """The training loop of a run."""

    steps: int
    rows: int
    forward_rows: int
    prompts: int
    rank: int
    world: int
    seed: int
    generation: dict[str, Any]
    stops: tuple[str, ...]
    kl_limit: float | None
    samples: int = 4

    @property
    def epochs(self) -> float:
        """Number of passes over the prompts."""
        return self.epoch_after(self.steps)

    def epoch_after(self, step: int) -> float:
        """Return the number of passes over the prompts after a number of steps."""
        return step * self.rows * self.world / self.prompts

    def rows_of(self, step: int) -> list[int]:
        """Return the prompt indices of a step on this rank; each pass is shuffled, the same way in every launch."""
        begin = (step * self.world + self.rank) * self.rows
        return [self._at(place) for place in range(begin, begin + self.rows)]

    def _at(self, place: int) -> int:
        # Seeded by epoch, without a running generator: the rows of any step can be computed after a resume.
        epoch, offset = divmod(place, self.prompts)
        return int(np.random.default_rng([self.seed, epoch]).permutation(self.prompts)[offset])


def plan(spec: PpoSpec, prompts: int, *, rank: int, world: int, max_steps: int | None = None) -> Plan:
    """Compute the training loop of a spec."""
    training = spec.training
    batch = training.rows * world
    if max_steps or training.max_steps:
        steps = max_steps or training.max_steps or 1
    elif training.steps:
        steps = math.ceil(training.steps * training.device_batch * world / batch)
    else:
        steps = math.ceil(training.num_train_epochs * prompts / batch)
    return Plan(
        steps=steps,
        rows=training.rows,
        forward_rows=min(training.device_batch, training.rows // training.parts),
        prompts=prompts,
        rank=rank,
        world=world,
        seed=training.seed,
        generation=generation_options(spec),
        stops=spec.generation.stop,
        kl_limit=training.target_kl * _KL_TIMES if training.early_stopping and training.target_kl else None,
    )


def answer_tokens(spec: PpoSpec) -> int:
    """Return the maximum answer length in tokens."""
    given = "max_seq_length" in spec.training.model_fields_set
    return spec.generation.max_new_tokens or (spec.training.max_seq_length if given else _TOKENS)


def temperature(spec: PpoSpec) -> float:
    """Return the sampling temperature, from `generation` or `training`."""
    return spec.generation.temperature or spec.training.temperature


def generation_options(spec: PpoSpec) -> dict[str, Any]:
    """Return the options of Transformers' `GenerationConfig`."""
    wanted = spec.generation
    options: dict[str, Any] = {"max_new_tokens": answer_tokens(spec), "do_sample": wanted.do_sample}
    if wanted.stop:
        options["stop_strings"] = list(wanted.stop)
    if not wanted.do_sample:
        return options
    # PPO optimizes the model's full distribution: it is not truncated unless the spec says so.
    return {
        **options,
        "temperature": temperature(spec),
        "top_p": wanted.top_p or 1.0,
        "top_k": wanted.top_k if (wanted.top_k or 0) > 0 else 0,
    }


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
        raise DataError(f"{place} has messages, to which no response can be appended.", hint="Remove response_field.")
    return prompt + str(parts.answer[0]["content"])
