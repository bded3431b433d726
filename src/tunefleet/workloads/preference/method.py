"""Base class of the methods: tokenization of rows, trainer, eval metrics as means over rows; reference model.

With several processes a few eval rows may count twice if their number is not a multiple of the global batch size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import datasets
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.analysis.memory import Load
from tunefleet.errors import DataError
from tunefleet.spec import AlignmentTaskSpec
from tunefleet.trainer_control.distributed import world
from tunefleet.workloads.data.formats import Shape
from tunefleet.workloads.data.holdout import Duplicates
from tunefleet.workloads.data.readers import Rows
from tunefleet.workloads.data.sources import LoadedRows
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.distributed.ranks import allow_sharding_on_cpu
from tunefleet.workloads.preference.preference_rows import Counts, RowKind, recognized
from tunefleet.workloads.training.arguments import common_arguments
from tunefleet.workloads.training.callbacks import common_callbacks
from tunefleet.workloads.training.exact_trainer import ContinueTokenCount, ExactTrainer, preserve_random_state
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly
from tunefleet.workloads.training.setup import HardwareSetup, arguments_context, enable_async_checkpoints

SpecT = TypeVar("SpecT", bound=AlignmentTaskSpec)
# Metrics of losses on pairs: how often the chosen answer is preferred, and by which reward margin.
MARGINS: Final = {"accuracy": "rewards/accuracies", "margin": "rewards/margins"}
# Folder in the job folder for rows with the log-probabilities of the reference model.
FOLDER = "reference"


class ExactEvalTrainer(ExactTrainer):
    """A mixin that comes before one of TRL's trainers, which collect their metrics in `_metrics`."""

    sequences_per_row = 1
    """Number of sequences in a batch per row."""
    _batch_rows: list[int]
    _metrics: Mapping[str, Any]

    def evaluate_rows(self, names: Mapping[str, str]) -> dict[str, float]:
        """Compute the metrics of the eval rows; calls no callbacks and restores the random state.

        Args:
            names: Metric name → TRL's name; metrics that TRL does not report are left out.
        """
        with preserve_random_state():
            output = self.evaluation_loop(self.get_eval_dataloader(), "eval rows", prediction_loss_only=True)
        found = self._metrics["eval"]
        measured = {name: found[theirs][0] for name, theirs in names.items() if found.get(theirs)}
        found.clear()
        return {"loss": float(output.metrics["eval_loss"]), **measured}

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the usual loop, and replace the means of batch means by means over rows."""
        self._batch_rows = []
        self._metrics["eval"].clear()
        output = super().evaluation_loop(*args, **kwargs)
        for values in self._metrics["eval"].values():
            values[:] = [_mean(values, self._batch_rows)]
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """Record the number of rows in the batch."""
        self._batch_rows.append(_rows(inputs) // self.sequences_per_row)
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Copy the token count into the state, which is saved in checkpoints."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.state.num_input_tokens_seen = max(int(self._total_train_tokens), int(self.state.num_input_tokens_seen))
        return loss


def _rows(inputs: Any) -> int:
    if isinstance(inputs, list):
        return len(inputs)
    return next(int(value.shape[0]) for value in inputs.values() if isinstance(value, torch.Tensor))


def _mean(values: list[float | None], rows: list[int]) -> float:
    weights = rows if len(rows) == len(values) else [1] * len(values)
    counted = [
        (value, weight)
        for value, weight in zip(values, weights, strict=True)
        if value is not None and not math.isnan(value)
    ]
    total = sum(weight for _, weight in counted)
    return sum(value * weight for value, weight in counted) / total if total else math.nan


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The tokenized train and eval rows of a run."""

    train: datasets.Dataset
    held_out: datasets.Dataset | None
    counts: Counts
    origin: str
    max_length: int
    notes: tuple[str, ...] = ()
    duplicates: Duplicates | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a trainer is built from."""

    model: Any
    peft_config: Any
    arguments: dict[str, Any]
    callbacks: list[TrainerCallback]
    tokenize: TrainingData
    tokenizer: PreTrainedTokenizerBase
    hardware_setup: HardwareSetup
    base: assembly.Base

    @property
    def common(self) -> dict[str, Any]:
        """The arguments of every TRL trainer besides `args`."""
        return {
            "model": self.model,
            "train_dataset": self.tokenize.train,
            "eval_dataset": self.tokenize.held_out,
            "processing_class": self.tokenizer,
            "peft_config": self.peft_config,
            "callbacks": self.callbacks,
        }


class Method(ABC, Generic[SpecT]):
    """One training method."""

    measures: ClassVar[Mapping[str, str]] = MARGINS
    """Eval metric → TRL's name for it."""
    row_kind: ClassVar[RowKind] = "prompts"
    """The format of the rows."""
    scores: ClassVar[bool] = False
    """Whether the model returns a score instead of a next-token distribution."""

    def __init__(self, launch: Launch[SpecT]) -> None:
        self.launch = launch
        self.spec: SpecT = launch.spec

    @property
    @abstractmethod
    def load(self) -> Load:
        """Sequences per row and extra models, for the memory estimate."""

    @property
    def columns(self) -> Callable[[Mapping[str, Any], str], tuple[str, ...]]:
        """A function that returns the columns used, given the first row and the dataset's name."""
        return lambda first, origin: self._recognized(first, origin).columns

    def shape(self, rows: Rows, origin: str, notes: Notes) -> Shape:
        """Return the format of the rows.

        Raises:
            DataError: If the first row lacks a column, or has another format.
        """
        data: Any = self.spec.data
        return Shape(self._recognized(rows[0], origin), origin, data.separator, notes)

    def _recognized(self, first: Mapping[str, Any], origin: str) -> Recognized:
        data: Any = self.spec.data
        return recognized(self.row_kind, data.columns, first, origin)

    @abstractmethod
    def tokenize(self, found: LoadedRows, encoder: Encoder, max_length: int) -> TrainingData:
        """Tokenize the rows.

        Raises:
            DataError: If a row cannot be used, or none is left.
        """

    @abstractmethod
    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build the trainer.

        Raises:
            InputError: If something named in the spec cannot be used.
            MachineError: If this machine lacks something.
        """

    def build(
        self,
        base: assembly.Base,
        tokenizer: PreTrainedTokenizerBase,
        training_data: TrainingData,
        hardware_setup: HardwareSetup,
    ) -> ExactEvalTrainer:
        """Load the model and build the trainer of the launch.

        Raises:
            InputError: If something named in the spec cannot be used.
            MachineError: If this machine lacks something.
        """
        launch, spec = self.launch, self.spec
        set_seed(spec.training.seed)
        # Before the model is loaded: creating the arguments registers DeepSpeed or FSDP, which loading depends on.
        arguments = common_arguments(spec, arguments_context(launch, hardware_setup.machine, hardware_setup.kernels))
        spread = launch.parallelism == "device_map"
        model, lora = assembly.load_base(spec, base, hardware_setup.kernels, spread=spread, scores=self.scores)
        if launch.parallelism == "fsdp":
            allow_sharding_on_cpu()
        count = ContinueTokenCount()
        callbacks = [count, *common_callbacks(launch)]
        trainer = self.trainer(Parts(model, lora, arguments, callbacks, training_data, tokenizer, hardware_setup, base))
        count.trainer = trainer
        enable_async_checkpoints(launch, trainer)
        return trainer


def require_rows(counts: Counts, origin: str, max_length: int) -> None:
    """Raise `DataError` if no row is left."""
    if counts.rows == 0:
        raise DataError(
            f"No row of {origin} has trained tokens within {max_length} tokens.",
            hint="Raise `training.max_seq_length`.",
        )


def load_reference_model(launch: Launch[SpecT], parts: Parts) -> Any:
    """Load the reference model; None with an adapter, which TRL disables to get the reference."""
    spread = launch.parallelism == "device_map"
    return assembly.load_reference(launch.spec, parts.base, parts.hardware_setup.kernels, spread=spread)


def share_rows_on_disk(launch: Launch[SpecT], common: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
    """Save the rows to disk if reference log-probabilities are precomputed; every rank reads them from there."""
    if not wanted:
        return common
    folder = launch.folder.root / FOLDER / launch.job.launch
    named = ("train_dataset", "eval_dataset")
    with ranks.leader_first(launch.folder, launch.job.launch, FOLDER):
        if world.leads_folder():
            for name in named:
                if common[name] is not None:
                    common[name].save_to_disk(str(folder / name))
    there = {name: datasets.load_from_disk(str(folder / name)) for name in named if common[name] is not None}
    return {**common, **there}
