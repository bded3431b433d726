"""What a kind brings to the common run: how its rows become tokens, its trainer, and what it measures."""

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
from tunefleet.workloads.data.sources import Found
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.preference.evaluation import HeldOut
from tunefleet.workloads.preference.preference_rows import RowKind, recognized
from tunefleet.workloads.preference.tokenization import Counts
from tunefleet.workloads.training.arguments import common_arguments
from tunefleet.workloads.training.callbacks import common_callbacks
from tunefleet.workloads.training.exact_trainer import ContinueTokenCount
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly
from tunefleet.workloads.training.model.hardware import allow_sharding_on_cpu
from tunefleet.workloads.training.setup import Surroundings, setting_of, settle

SpecT = TypeVar("SpecT", bound=AlignmentTaskSpec)
MARGINS: Final = {"accuracy": "rewards/accuracies", "margin": "rewards/margins"}
"""What the losses on pairs measure: how often the better answer is preferred, and by how much."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is trained on and measured with."""

    train: datasets.Dataset
    held_out: datasets.Dataset | None
    counts: Counts
    origin: str
    max_length: int
    notes: tuple[str, ...] = ()
    duplicates: Duplicates | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a trainer is put together from."""

    model: Any
    peft_config: Any
    arguments: dict[str, Any]
    callbacks: list[TrainerCallback]
    material: Material
    tokenizer: PreTrainedTokenizerBase
    around: Surroundings
    base: assembly.Base

    @property
    def common(self) -> dict[str, Any]:
        """What every trainer of TRL takes beside its arguments."""
        return {
            "model": self.model,
            "train_dataset": self.material.train,
            "eval_dataset": self.material.held_out,
            "processing_class": self.tokenizer,
            "peft_config": self.peft_config,
            "callbacks": self.callbacks,
        }


class Method(ABC, Generic[SpecT]):
    """One kind.

    Args:
        launch: What is to be trained.
    """

    measures: ClassVar[Mapping[str, str]] = MARGINS
    """What is measured on held-out rows → what TRL calls it."""
    row_kind: ClassVar[RowKind] = "prompts"
    """What a row is."""
    scores: ClassVar[bool] = False
    """Whether the model gives a score in place of the next token."""

    def __init__(self, launch: Launch[SpecT]) -> None:
        self.launch = launch
        self.spec: SpecT = launch.spec

    @property
    @abstractmethod
    def load(self) -> Load:
        """What is done with a row, for the estimate of the memory."""

    @property
    def columns(self) -> Callable[[Mapping[str, Any], str], tuple[str, ...]]:
        """What finds the columns that are trained on, given the first row and the dataset's name."""
        return lambda first, origin: self._recognized(first, origin).columns

    def shape(self, rows: Rows, origin: str, notes: Notes) -> Shape:
        """Return how rows are read.

        Raises:
            DataError: If the first row lacks a column, or the rows are something else.
        """
        data: Any = self.spec.data
        return Shape(self._recognized(rows[0], origin), origin, data.separator, notes)

    def _recognized(self, first: Mapping[str, Any], origin: str) -> Recognized:
        data: Any = self.spec.data
        return recognized(self.row_kind, data.columns, first, origin)

    @abstractmethod
    def material(self, found: Found, encoder: Encoder, max_length: int) -> Material:
        """Make tokens of the rows.

        Raises:
            DataError: If a row cannot be used, or none is left.
        """

    @abstractmethod
    def trainer(self, parts: Parts) -> HeldOut:
        """Make the trainer.

        Raises:
            InputError: If something named cannot be used.
            MachineError: If something is missing here.
        """

    def build(
        self, base: assembly.Base, tokenizer: PreTrainedTokenizerBase, material: Material, around: Surroundings
    ) -> HeldOut:
        """Load the model and make the trainer of the launch.

        Raises:
            InputError: If something named cannot be used.
            MachineError: If something is missing here.
        """
        launch, spec = self.launch, self.spec
        set_seed(spec.training.seed)
        # Before the model is loaded: what shares the weights out must be known by then.
        arguments = common_arguments(spec, setting_of(launch, around.machine, around.kernels))
        # Longer weights than rows would else be asked of layers that are not there.
        spread = launch.parallelism == "device_map"
        model, lora = assembly.load_base(spec, base, around.kernels, spread=spread, scores=self.scores)
        if launch.parallelism == "fsdp":
            allow_sharding_on_cpu()
        count = ContinueTokenCount()
        callbacks = [count, *common_callbacks(launch)]
        trainer = self.trainer(Parts(model, lora, arguments, callbacks, material, tokenizer, around, base))
        count.trainer = trainer
        settle(launch, trainer)
        return trainer


def some_left(counts: Counts, origin: str, max_length: int) -> None:
    """Refuse rows of which none is left."""
    if counts.rows == 0:
        raise DataError(
            f"No row of {origin} has anything to learn within {max_length} tokens.",
            hint="Raise `training.max_seq_length`.",
        )


# In the job folder: rows with what the reference says of them.
FOLDER = "reference"


def reference_of(launch: Launch[SpecT], parts: Parts) -> Any:
    """Load the reference; None where an adapter is trained, which TRL turns off for it."""
    spread = launch.parallelism == "device_map"
    return assembly.load_reference(launch.spec, parts.base, parts.around.kernels, spread=spread)


def where_others_find_it(launch: Launch[SpecT], common: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
    """Put the rows on the disk if the reference judges them beforehand: each rank reads what one has written."""
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
