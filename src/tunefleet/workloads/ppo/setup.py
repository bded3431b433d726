"""Derives the PPO training loop from a spec: number of steps, prompts of each step, sampling parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefleet.spec import PpoSpec

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
