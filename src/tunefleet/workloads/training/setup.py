"""What every training does around its own part: it is begun, set up, resumed and delivered alike.

A program opens its launch (`open_training`), looks at the machine (`look_around`), makes its trainer with `setting_of`,
`common_callbacks` and `settle`, trains it (`train`, or `train_between` two measurements), and ends with `deliver` and
`report`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from peft import PeftModel
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunefleet import fsutil
from tunefleet.analysis.memory.estimate import PLAIN, Load
from tunefleet.errors import DataError
from tunefleet.workloads.common import job
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.training.arguments import Setting
from tunefleet.workloads.training.async_checkpoint import BackgroundWriter
from tunefleet.workloads.training.checkpoint_compression import DropUnpacked, opened
from tunefleet.workloads.training.exact_trainer import ExactTrainer, without_card
from tunefleet.workloads.training.launch import Launch, SpecT, limit_gpu_memory, open_launch
from tunefleet.workloads.training.model import deepspeed, hardware
from tunefleet.workloads.training.model.memory import Memory

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Filled in by the worker, which packs when the job's process is gone and its GPU is free.
_ARCHIVE_KEYS = ("archive", "archive_path", "archive_url", "archive_bytes")


def open_training(folder: Path, wanted: type[SpecT]) -> Launch[SpecT]:
    """Open the launch of a job folder, and keep its log for what a person wants to read."""
    launch = open_launch(folder, wanted)
    job.libraries()
    return launch


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a launch trains, and with what."""

    machine: hardware.Hardware
    kernels: hardware.Kernels
    memory: Memory


def look_around(launch: Launch[SpecT], *, liger: bool | None = None, load: Load = PLAIN) -> Surroundings:
    """Take this process's own device and choose its kernels.

    Args:
        liger: Whether Liger kernels are wished; None for where they are.
    """
    spec = launch.spec
    ranks.use_own_device()
    share = limit_gpu_memory()
    machine = hardware.inspect()
    memory = Memory(launch.folder.root.parent, spec, machine.device, share, load)
    kernels = hardware.choose(machine, bf16=spec.bf16, fp16=spec.fp16, attention=spec.attention, liger=liger)
    return Surroundings(machine, kernels, memory)


def setting_of(launch: Launch[SpecT], machine: hardware.Hardware, kernels: hardware.Kernels) -> Setting:
    """Return what the training arguments depend on beside the spec."""
    training, zero = launch.spec.training, None
    if launch.parallelism == "deepspeed":
        deepspeed.require()
        zero = deepspeed.configuration(training, kernels.compute, launch.job.inputs)
    # Where the memory did not suffice for the training's batch, an evaluation must not take more.
    small = training.batch_size if "batch_size" in launch.overrides else None
    folder, name = launch.session.checkpoints_dir, launch.job.name
    return Setting(machine, kernels, folder, name, small, launch.parallelism, zero)


def settle(launch: Launch[SpecT], trainer: ExactTrainer) -> None:
    """Let a new trainer write its checkpoints beside the training, if the spec wants that."""
    if launch.spec.checkpoint.asynchronous:
        writer = BackgroundWriter()
        trainer.write_in_background(writer)
        launch.session.before_manifest.append(writer.settle)


def train(launch: Launch[SpecT], trainer: ExactTrainer) -> None:
    """Train, from the newest checkpoint if there is one."""
    with launch.clock.part("training"):
        trainer.train(resume_from_checkpoint=_resume_folder(launch, trainer))


def train_between(
    launch: Launch[SpecT], trainer: ExactTrainer, measure: Callable[[int, str], T], baseline: Callable[[], T]
) -> tuple[T, T]:
    """Train as `train` does; returns what was measured before and after it."""
    clock, first = launch.clock, AtBegin(baseline)
    if launch.shares_weights:
        # A model is shared out together with its optimizer, and that is made when the training begins.
        trainer.add_callback(first)
    else:
        with clock.part("evaluation_before"):
            first.run()
    train(launch, trainer)
    with clock.part("evaluation_after"):
        after = measure(trainer.state.global_step, "after")
    return first.result, after


def _resume_folder(launch: Launch[SpecT], trainer: ExactTrainer) -> str | None:
    """Return the folder that the trainer is to resume from, unpacked."""
    resume = launch.session.resume
    if resume is None:
        return None
    folder = opened(resume.path, launch.workspace)
    if folder != resume.path:
        trainer.add_callback(DropUnpacked(folder))
    return str(folder)


def deliver(launch: Launch[SpecT], trainer: ExactTrainer, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Save the adapter or model; returns the keys of the result that say where, those of an archive still empty.

    Raises:
        DataError: If nothing was trained that was to be.
    """
    state = trainer.state
    # Steering ends a training behind a step at the earliest.
    if state.global_step == 0 < state.max_steps:
        raise DataError(
            f"The training made none of its {state.max_steps} steps: its rows do not fill a batch.",
            hint="Give more rows, or lower `training.batch_size`.",
        )
    name = launch.product.name
    keys: dict[str, Any] = {f"{name}_{key}": None for key in ("path", *_ARCHIVE_KEYS)}
    keys[f"{name}_archive_uploaded"] = False
    if not launch.spec.training.save_model:
        return keys
    if trainer.best_missing:
        best = Path(str(trainer.state.best_model_checkpoint)).name
        text = f"The best checkpoint, {best}, has lost its weights: what is delivered are the last ones."
        launch.journal.event("training.best_missing", text, "error")
    # Of a model that is shared out every rank brings its part; one of them writes.
    weights = trainer.whole_weights() if launch.shares_weights else None
    if not launch.session.leads:
        return keys
    model = trainer.model
    # A reference of a trainer's own may lie beside the adapter that was trained.
    chosen: Mapping[str, Any] = {"selected_adapters": ["default"]} if isinstance(model, PeftModel) else {}

    def write(folder: Path) -> None:
        with without_card(model):
            model.save_pretrained(folder, state_dict=weights, **chosen)
        tokenizer.save_pretrained(folder)
        identifier = launch.spec.model.source.identifier
        name_base(folder, identifier)
        write_card(folder, launch.spec.task_type, identifier)

    fsutil.write_folder(launch.product, write)
    keys[f"{name}_path"] = str(launch.product)
    return keys


def report(launch: Launch[SpecT], memory: Memory, result: Mapping[str, Any]) -> None:
    """Write the result of the job, with what was changed since the spec was written and the memory that it took."""
    whole = {**result, "overrides": launch.changes, "memory": memory.outcome()}
    if launch.session.leads:
        fsutil.write_file(launch.folder.responses_json, json.dumps(whole, indent=1).encode())


class AtBegin(TrainerCallback, Generic[T]):
    """Does one thing once, at once or when the training begins, and keeps what came of it."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._done: list[T] = []

    @property
    def result(self) -> T:
        """What came of it."""
        return self._done[0]

    def run(self) -> None:
        """Do it now, unless it is done."""
        if not self._done:
            self._done.append(self._act())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Do it."""
        self.run()


CONFIG: Final = "adapter_config.json"
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def name_base(folder: Path, base: str) -> None:
    """Let an adapter name its base as the user does, not by the folder that it had on this machine."""
    path = folder / CONFIG
    if not path.is_file():
        return
    config = json.loads(path.read_bytes())
    config["base_model_name_or_path"] = base
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_card(folder: Path, kind: str, base: str) -> None:
    """Write a model card."""
    adapter = (folder / CONFIG).is_file()
    on_hub = _HUB_ID.fullmatch(base) is not None and not base.startswith(".")
    lines = [
        "---",
        *([f"base_model: {base}"] if on_hub else []),
        f"library_name: {'peft' if adapter else 'transformers'}",
        "tags:",
        *(["- lora"] if adapter else []),
        f"- {kind}",
        "- tunefleet",
        "---",
        "",
        f"# {'LoRA adapter' if adapter else 'Model'} trained from {base if on_hub else Path(base).name}",
        "",
        f"Trained with Tunefleet, task kind `{kind}`.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
