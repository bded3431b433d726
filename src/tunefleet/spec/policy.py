"""Blocks that say what happens around a task: output, checkpoint, retry, limits, sample answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tunefleet.spec.base import (
    Block,
    NaturalFloat,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    RelativePath,
    as_list,
    only,
)
from tunefleet.spec.data import LocalName

Folder = Annotated[RelativePath, AfterValidator(lambda name: name.rstrip("/"))]
"""A file or a folder, with or without a slash at its end."""
RetryReason = Literal["bug", "out_of_memory", "network", "killed", "crashed", "timeout", "stalled"]
"""The reasons of `lifecycle.task` that are charged to `retry.max_attempts`."""


class DestinationSpec(Block):
    """`output.destination`: whether archives are made. Files always reach the server that placed the task."""

    type: Literal["local", "http"] = "local"
    """`http`: also make `final_model.tar.gz` or `final_lora.tar.gz`."""


class OutputSpec(Block):
    """`spec.output`: what is delivered beside the model or adapter."""

    destination: DestinationSpec = DestinationSpec()
    """Whether archives are made."""
    artifacts: Annotated[tuple[Folder, ...], BeforeValidator(as_list)] = ()
    """Names of what the task leaves: `responses.json`, `logs`, `final_lora` or `final_model` are always delivered; a
    name with `.tar.gz` asks for the archive, too."""

    def wants_archive(self, name: str) -> bool:
        """Whether `<name>.tar.gz` is to be made.

        Args:
            name: Name of the folder, `final_lora` or `final_model`.
        """
        return self.destination.type == "http" or f"{name}.tar.gz" in self.artifacts


class CheckpointLoadSpec(Block):
    """`checkpoint.load`: weights to start from: a model, or for LoRA an adapter that is trained on."""

    type: Annotated[
        Literal["local"],
        only(
            "local",
            "loading from an address is not available in this version",
            "fetch the files with `tunefleet artifacts get` and name them with `path`",
        ),
    ] = "local"
    """Always `local`."""
    path: LocalName
    """Folder or archive; it travels with the submit."""
    archive_format: Literal["auto", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip", "none"] = "auto"
    """Format of the archive; `none` takes the path as it is."""
    subdir: RelativePath | None = None
    """Folder inside it; by default a single top-level folder is entered."""


class CheckpointSpec(Block):
    """`spec.checkpoint`: where the weights start from, and how checkpoints are kept."""

    load: CheckpointLoadSpec | None = None
    """Weights to start from; optimizer and step count start anew."""
    compress: Literal["none", "zstd"] = "none"
    """Compress the checkpoints that are kept; in the background, after the save."""
    asynchronous: bool = False
    """Write checkpoints in the background from a copy in memory, so that a save stops the training for less."""
    upload: bool = True
    """Send the newest whole and the best checkpoint to the server in the background, so that another worker can go on
    from them."""


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
