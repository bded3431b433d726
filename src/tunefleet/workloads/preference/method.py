"""Base class of the methods: tokenization of rows, trainer, eval metrics; and the reference model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import datasets
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.analysis.memory.estimate import Load
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
from tunefleet.workloads.preference.evaluation import ExactEvalTrainer
from tunefleet.workloads.preference.preference_rows import RowKind, recognized
from tunefleet.workloads.preference.tokenization import Counts
from tunefleet.workloads.training.arguments import common_arguments
from tunefleet.workloads.training.callbacks import common_callbacks
from tunefleet.workloads.training.exact_trainer import ContinueTokenCount
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly
from tunefleet.workloads.training.setup import HardwareSetup, arguments_context, enable_async_checkpoints

SpecT = TypeVar("SpecT", bound=AlignmentTaskSpec)
# Metrics of losses on pairs: how often the chosen answer is preferred, and by which reward margin.
MARGINS: Final = {"accuracy": "rewards/accuracies", "margin": "rewards/margins"}
# Folder in the job folder for rows with the log-probabilities of the reference model.
FOLDER = "reference"


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
