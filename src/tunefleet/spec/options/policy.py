"""Blocks that say what happens around a task: retry, limits, sample answers, shards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, NaturalFloat, NaturalInt, NotBool, PositiveFloat, PositiveInt, as_list, wrong
from tunefleet.spec.options.answer_match import ExactMatchSpec
from tunefleet.spec.options.resources import MAX_SHARDS

# The reasons of `lifecycle.task` that are charged to `retry.max_attempts`.
RetryReason = Literal["bug", "out_of_memory", "network", "killed", "crashed", "timeout", "stalled"]


class RetrySpec(Block):
    """`spec.retry`: how often a failed task is tried. A user's mistake is never tried again."""

    max_attempts: Annotated[int, Field(ge=1, le=100), NotBool] = 3
    """Tries in all; a lost worker does not count."""
    backoff_s: NaturalFloat = 10.0
    """Seconds before the first repeat; doubled for each further one."""
    on: Annotated[tuple[RetryReason, ...], BeforeValidator(as_list)] = (
        "bug",
        "out_of_memory",
        "network",
        "killed",
        "crashed",
        "timeout",
        "stalled",
    )
    """Reasons that are worth another try."""


class LimitsSpec(Block):
    """`spec.limits`: how long a task may take."""

    max_runtime_s: PositiveFloat | None = None
    """Seconds that one attempt may run."""
    max_queue_s: PositiveFloat | None = None
    """Seconds that the task may wait for a worker."""
    stall_after_s: PositiveFloat = 600.0
    """Seconds without a journal record after which a running job counts as stalled; see `on_stall`."""


class EvaluateSpec(Block):
    """`spec.evaluate`: sample answers to held-out prompts, before and after the training."""

    answers: NaturalInt = 0
    """How many held-out prompts are answered."""
    max_new_tokens: PositiveInt = 128
    """Longest answer, in tokens."""
    exact_match: ExactMatchSpec | None = None
    """Also the share of held-out rows that are answered right."""

    @property
    def questions(self) -> int:
        """How many prompts are answered in all."""
        return max(self.answers, self.exact_match.rows if self.exact_match else 0)


class PredictionsSpec(Block):
    """`spec.predictions`: sample answers to held-out prompts at the evaluations during the training."""

    enabled: bool = True
    """Whether they are made; the block being there turns them on."""
    sample_count: PositiveInt = 5
    """How many held-out prompts are answered."""
    sample_frequency: PositiveInt | Literal["eval", "epoch"] = "eval"
    """At every evaluation (`eval`), at the ends of epochs (`epoch`), or at every N-th evaluation."""
    max_new_tokens: PositiveInt = 128
    """Longest answer, in tokens."""


class ParallelSpec(Block):
    """`spec.parallel`: split the items into shards for several workers; results are put together in order."""

    enabled: bool = False
    """Whether it is done. The files of `postprocess.jsonl_export` become one, too."""
    max_shards: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool] | None = None
    """Most shards; never more than there are items. By default as many as there are workers that can run the task, 8 at
    most."""

    @model_validator(mode="after")
    def _meant(self) -> ParallelSpec:
        if self.max_shards is not None and "enabled" not in self.model_fields_set:
            raise wrong("has no effect without enabled: true", "add enabled: true", at="max_shards")
        return self


class ShardSpec(Block):
    """`spec.shard`: the part of the items that this task takes; the server writes it for the shards of a task."""

    index: NaturalInt
    """Which part, counted from 0."""
    total: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool]
    """How many parts there are."""
    contiguous: bool = True
    """Items that stand together; else every `total`-th one."""

    @model_validator(mode="after")
    def _inside(self) -> ShardSpec:
        if self.index >= self.total:
            raise wrong(f"must be less than total, which is {self.total}", "count from 0", at="index")
        return self
