"""Start, setup, resume and delivery, shared by all training tasks.

A program opens its launch (`open_training`), detects the hardware (`detect_hardware`), builds its trainer with
`arguments_context`, `common_callbacks` and `enable_async_checkpoints`, trains (`train`, or `train_between` two
evaluations), and ends with `deliver` and `write_result`.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from peft import PeftModel
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from tunefleet import fsutil
from tunefleet.analysis.memory import PLAIN, Load
from tunefleet.errors import DataError
from tunefleet.runtime.disk_check import DiskTooSmallError, Forecast, require_space
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.checkpoints.manifest import list_complete
from tunefleet.workloads.common import job
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.training.arguments import ArgumentsContext
from tunefleet.workloads.training.async_checkpoint import BackgroundWriter
from tunefleet.workloads.training.callbacks import StepPrinter
from tunefleet.workloads.training.checkpoint_compression import DeleteDecompressed, decompressed
from tunefleet.workloads.training.exact_trainer import ExactTrainer, without_card
from tunefleet.workloads.training.launch import Launch, SpecT, limit_gpu_memory, open_launch
from tunefleet.workloads.training.model import deepspeed, hardware
from tunefleet.workloads.training.model.memory import Memory

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Filled in by the worker, which packs the archive after the process has ended and its GPU is free.
_ARCHIVE_KEYS = ("archive", "archive_path", "archive_url", "archive_bytes")
CONFIG: Final = "adapter_config.json"
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def open_training(folder: Path, wanted: type[SpecT]) -> Launch[SpecT]:
    """Open the launch of a job folder, and reduce the logs of the training libraries."""
    launch = open_launch(folder, wanted)
    job.quiet_libraries()
    return launch


@dataclass(frozen=True, slots=True)
class HardwareSetup:
    """Hardware, kernels and memory estimate of a launch."""

    machine: hardware.Hardware
    kernels: hardware.Kernels
    memory: Memory


def detect_hardware(launch: Launch[SpecT], *, liger: bool | None = None, load: Load = PLAIN) -> HardwareSetup:
    """Select this rank's device and choose its kernels.

    Args:
        liger: Whether to use Liger kernels; None uses them where installed.
    """
    spec = launch.spec
    ranks.use_own_device()
    share = limit_gpu_memory()
    machine = hardware.inspect()
    memory = Memory(launch.folder.root.parent, spec, machine.device, share, load)
    kernels = hardware.choose(machine, bf16=spec.bf16, fp16=spec.fp16, attention=spec.attention, liger=liger)
    return HardwareSetup(machine, kernels, memory)


def arguments_context(launch: Launch[SpecT], machine: hardware.Hardware, kernels: hardware.Kernels) -> ArgumentsContext:
    """Return the context that training arguments depend on besides the spec."""
    training, zero = launch.spec.training, None
    if launch.parallelism == "deepspeed":
        deepspeed.require()
        zero = deepspeed.configuration(training, kernels.compute, launch.job.inputs)
    # After a retry with a smaller batch, the default eval batch size could run out of memory again.
    small = training.batch_size if "batch_size" in launch.overrides else None
    folder, name = launch.session.checkpoints_dir, launch.job.name
    return ArgumentsContext(machine, kernels, folder, name, small, launch.parallelism, zero)


def enable_async_checkpoints(launch: Launch[SpecT], trainer: ExactTrainer) -> None:
    """Make a new trainer write checkpoints in the background, if the spec enables it."""
    if launch.spec.checkpoint.asynchronous:
        writer = BackgroundWriter()
        trainer.write_in_background(writer)
        # The manifest is what makes a checkpoint valid, so it is written only after the background write.
        launch.session.before_manifest.append(writer.settle)


def train(launch: Launch[SpecT], trainer: ExactTrainer) -> None:
    """Train; resumes from the newest checkpoint if there is one."""
    # The Trainer's own printer writes a Python dictionary without the step.
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StepPrinter())
    with launch.clock.part("training"):
        trainer.train(resume_from_checkpoint=_resume_folder(launch, trainer))


def train_between(
    launch: Launch[SpecT], trainer: ExactTrainer, measure: Callable[[int, str], T], baseline: Callable[[], T]
) -> tuple[T, T]:
    """Train as `train` does; returns the evaluations before and after."""
    clock, first = launch.clock, RunOnce(baseline)
    if launch.shares_weights:
        # A sharded model exists only once the optimizer is created, which happens at the start of training.
        trainer.add_callback(first)
    else:
        with clock.part("evaluation_before"):
            first.run()
    train(launch, trainer)
    with clock.part("evaluation_after"):
        after = measure(trainer.state.global_step, "after")
    return first.result, after


def _resume_folder(launch: Launch[SpecT], trainer: ExactTrainer) -> str | None:
    """Return the folder to resume from, decompressed."""
    resume = launch.session.resume
    if resume is None:
        return None
    folder = decompressed(resume.path, launch.workspace)
    if folder != resume.path:
        trainer.add_callback(DeleteDecompressed(folder))
    return str(folder)


def deliver(launch: Launch[SpecT], trainer: ExactTrainer, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Save the adapter or model; returns the result keys with its paths, archive keys still empty.

    Raises:
        DataError: If no training step was made.
    """
    state = trainer.state
    # Commands end a run after a step at the earliest, so zero steps mean that the rows do not fill a batch.
    if state.global_step == 0 < state.max_steps:
        raise DataError(
            f"None of the {state.max_steps} training steps was run: the rows do not fill a batch.",
            hint="Add rows, or lower `training.batch_size`.",
        )
    name = launch.product.name
    keys: dict[str, Any] = {f"{name}_{key}": None for key in ("path", *_ARCHIVE_KEYS)}
    keys[f"{name}_archive_uploaded"] = False
    if not launch.spec.training.save_model:
        return keys
    if trainer.best_missing:
        best = Path(str(trainer.state.best_model_checkpoint)).name
        text = f"The weights of the best checkpoint, {best}, are missing: the last weights are delivered instead."
        launch.journal.event("training.best_missing", text, "error")
    # Every rank takes part in gathering a sharded model; only rank 0 writes it.
    weights = trainer.gathered_weights() if launch.shares_weights else None
    if not launch.session.leads:
        return keys
    model = trainer.model
    # TRL may have added a reference adapter next to the trained one.
    chosen: Mapping[str, Any] = {"selected_adapters": ["default"]} if isinstance(model, PeftModel) else {}

    def write(folder: Path) -> None:
        with without_card(model):
            model.save_pretrained(folder, state_dict=weights, **chosen)
        tokenizer.save_pretrained(folder)
        identifier = launch.spec.model.source.identifier
        set_base_name(folder, identifier)
        write_card(folder, launch.spec.task_type, identifier)

    fsutil.write_folder(launch.product, write)
    keys[f"{name}_path"] = str(launch.product)
    return keys


def write_result(launch: Launch[SpecT], memory: Memory, result: Mapping[str, Any]) -> None:
    """Write the result of the job, with the overrides and the memory figures."""
    content = {**result, "overrides": launch.changes, "memory": memory.outcome()}
    if launch.session.leads:
        fsutil.write_file(launch.folder.responses_json, json.dumps(content, indent=1).encode())


class RunOnce(TrainerCallback, Generic[T]):
    """Runs a function once, directly or at the start of training, and keeps its result."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        # A list and not an optional value: None may be a result.
        self._done: list[T] = []

    @property
    def result(self) -> T:
        """The result of the function."""
        return self._done[0]

    def run(self) -> None:
        """Run the function unless it has run already."""
        if not self._done:
            self._done.append(self._act())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Run the function."""
        self.run()


def set_base_name(folder: Path, base: str) -> None:
    """Set an adapter's base model to the name in the spec instead of its path on this machine."""
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
        f"Trained with Tunefleet, task type `{kind}`.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def require_disk(folder: JobFolder, trainer: Trainer, *, adapter: bool, make_room: Callable[[], bool]) -> None:
    """Raise `DiskTooSmallError` if the disk has no space for the checkpoints and the final model.

    Caches for later launches are deleted with `make_room` before a run is refused.
    """
    # Earlier launches of this job wrote these already; they count towards the estimate, not against it.
    present = sum(checkpoint.size_bytes for checkpoint in list_complete(folder.checkpoints_dir))
    needed = disk_forecast(trainer, adapter=adapter)
    try:
        require_space(folder.root, needed, present_bytes=present)
    except DiskTooSmallError:
        if not make_room():
            raise
        require_space(folder.root, needed, present_bytes=present)


def disk_forecast(trainer: Trainer, *, adapter: bool) -> Forecast:
    """Return what a training run will write."""
    parameters = list(trainer.model.parameters())
    saved = [parameter for parameter in parameters if parameter.requires_grad or not adapter]
    return Forecast(
        weights_bytes=sum(parameter.numel() * parameter.element_size() for parameter in saved),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        checkpoints=trainer.args.save_total_limit,
        saves=_saves(trainer.args, len(trainer.train_dataset)),
    )


def _saves(args: TrainingArguments, rows: int) -> int:
    """Return how many checkpoints a run writes, including the one at its end."""
    per_epoch = math.ceil(rows / (args.train_batch_size * args.gradient_accumulation_steps * args.world_size))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    match args.save_strategy:
        case "no":
            return 0
        case "epoch":
            return math.ceil(steps / max(per_epoch, 1))
        case "best":
            # At most one per evaluation; an interval below one is a ratio of the run.
            return _times(steps, args.eval_steps or steps)
        case _:
            return _times(steps, args.save_steps)


def _times(steps: int, interval: float) -> int:
    return math.ceil(1 / interval) if interval < 1 else math.ceil(steps / interval)
