"""Blocks around a task: retry, limits, sample answers, shards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, NaturalFloat, NaturalInt, NotBool, PositiveFloat, PositiveInt, as_list, wrong
from tunefleet.spec.options.answer_match import ExactMatchSpec
from tunefleet.spec.options.resources import MAX_SHARDS

# The reasons of `lifecycle.task` that are charged to `retry.max_attempts`.
RetryReason = Literal[
    "bug", "out_of_memory", "disk_full", "machine_error", "network", "killed", "crashed", "timeout", "stalled"
]  # fmt: skip


class RetrySpec(Block):
    """`spec.retry`: when a failed task is retried. Invalid input is never retried."""

    max_attempts: Annotated[int, Field(ge=1, le=100), NotBool] = 3
    """Maximum number of attempts, including the first; attempts on a lost worker do not count."""
    backoff_s: NaturalFloat = 10.0
    """Seconds before the first retry; doubled for each further one."""
    on: Annotated[tuple[RetryReason, ...], BeforeValidator(as_list)] = (
        "bug",
        "out_of_memory",
        "disk_full",
        "machine_error",
        "network",
        "killed",
        "crashed",
        "timeout",
        "stalled",
    )
    """Failure reasons that are retried."""


class LimitsSpec(Block):
    """`spec.limits`: time limits of a task."""

    max_runtime_s: PositiveFloat | None = None
    """Maximum run time of one attempt, in seconds."""
    max_queue_s: PositiveFloat | None = None
    """Maximum time in the queue, in seconds."""
    no_worker_grace_s: PositiveFloat | None = None
    """Seconds after which the task fails if no registered worker could ever run it. Busy and unreachable workers count
    as able. Default: the server's `TUNEFLEET_NO_WORKER_GRACE_S`; without it, the task waits."""
    stall_after_s: PositiveFloat = 600.0
    """Seconds without a journal record after which a running job counts as stalled; see `on_stall`."""


class EvaluateSpec(Block):
    """`spec.evaluate`: sample answers to eval prompts, before and after training."""

    answers: NaturalInt = 0
    """Number of eval prompts to answer."""
    max_new_tokens: PositiveInt = 128
    """Maximum number of tokens per answer."""
    exact_match: ExactMatchSpec | None = None
    """Also measure the share of eval rows with a correct answer."""

    @property
    def questions(self) -> int:
        """Total number of prompts to answer."""
        return max(self.answers, self.exact_match.rows if self.exact_match else 0)


class PredictionsSpec(Block):
    """`spec.predictions`: sample answers to eval prompts during training."""

    enabled: bool = True
    """Enable the predictions; on if the block is present."""
    sample_count: PositiveInt = 5
    """Number of eval prompts to answer."""
    sample_frequency: PositiveInt | Literal["eval", "epoch"] = "eval"
    """At every evaluation (`eval`), at the end of each epoch (`epoch`), or at every N-th evaluation."""
    max_new_tokens: PositiveInt = 128
    """Maximum number of tokens per answer."""


class ParallelSpec(Block):
    """`spec.parallel`: split the items into shards for several workers; results are joined in order."""

    enabled: bool = False
    """Enable sharding. The files of `postprocess.jsonl_export` are joined too."""
    max_shards: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool] | None = None
    """Maximum number of shards; never more than items. Default: the number of workers that can run the task, at most
    8."""

    @model_validator(mode="after")
    def _meant(self) -> ParallelSpec:
        # `enabled: false` together with `max_shards` is fine: a switch that was turned off.
        if self.max_shards is not None and "enabled" not in self.model_fields_set:
            raise wrong("has no effect without enabled: true", "add enabled: true", at="max_shards")
        return self


class ShardSpec(Block):
    """`spec.shard`: the items of this shard; set by the server for the shards of a task."""

    index: NaturalInt
    """Index of the shard, from 0."""
    total: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool]
    """Number of shards."""
    contiguous: bool = True
    """Take consecutive items; otherwise every `total`-th one."""

    @model_validator(mode="after")
    def _inside(self) -> ShardSpec:
        if self.index >= self.total:
            raise wrong(f"must be less than total, which is {self.total}", "count from 0", at="index")
        return self
