"""`ExactTrainer`: what Tunefleet changes in `Trainer` and its subclasses.

An evaluation restores the random state, so that a run with evaluations equals one without; a run resumed from its last
step does not train further; checkpoints may be written in the background; adapters are trained in float32, also on a
quantized base; no telemetry is sent and no model card is written into checkpoints.
"""

from __future__ import annotations

import copy
import functools
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import PeftModel
from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from tunefleet.workloads.training.async_checkpoint import BackgroundWriter, checkpoint_weights, copied, write_optimizer
from tunefleet.workloads.training.checkpoint_compression import decompressed, files_kept
from tunefleet.workloads.training.model import lora

# Prefixes of weight files and of folders with shards.
_WEIGHTS = ("model", "pytorch_model", "adapter_model")


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore every random generator afterwards."""
    # Not before CUDA is initialized: forking its generators would create a context on every device.
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class ExactTrainer(transformers.Trainer):
    """A mixin that comes before the trainer of a library: `class Ours(ExactTrainer, TheirTrainer)`."""

    best_missing = False
    """Whether the weights of the best checkpoint were gone when it was loaded at the end."""
    _writer: BackgroundWriter | None = None

    def __init__(self, **options: Any) -> None:
        before = lora.trainable_weights(options["model"])
        super().__init__(**options)
        if not self.is_deepspeed_enabled:  # it keeps float32 master weights itself
            lora.train_in_float32(self.model, before, autocast=self.args.bf16 or self.args.fp16)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate during training without an effect on it."""
        with preserve_random_state():
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        return metrics

    def write_in_background(self, writer: BackgroundWriter) -> None:
        """Write checkpoints in the background from now on."""
        self._writer = writer

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # PEFT's model card takes longer to write than the adapter; a checkpoint does not need it.
        for_resuming = output_dir is not None and Path(output_dir).name.startswith(PREFIX_CHECKPOINT_DIR)
        save = functools.partial(_save_without_card, self.model, super()._save) if for_resuming else super()._save
        if self._writer is None or not self._writer.saving or output_dir is None:
            save(output_dir, state_dict)
            return
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        # Copied here, on the training thread: the next step would change the weights while they are written.
        weights = copied(checkpoint_weights(self.model, adapter=isinstance(self.model, PeftModel)))
        self._writer.submit(functools.partial(save, output_dir, weights))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._writer is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        states = copied(self.optimizer.state_dict()), copy.deepcopy(self.lr_scheduler.state_dict())
        self._writer.submit(functools.partial(write_optimizer, output_dir, *states))

    def _load_best_model(self) -> None:
        if self._writer is not None:
            self._writer.wait()  # the best checkpoint may be the last one, which is still being written
        best = Path(str(self.state.best_model_checkpoint))
        with files_kept():
            self.accelerator.wait_for_everyone()
            folder = decompressed(best, best.parent.parent / "inputs")
            self.state.best_model_checkpoint = str(folder)
            # Transformers ignores missing files and keeps the last weights, so this must be reported separately.
            self.best_missing = not any(path.name.startswith(_WEIGHTS) for path in folder.iterdir())
            super()._load_best_model()
            self.accelerator.wait_for_everyone()
        self.state.best_model_checkpoint = str(best)
        if folder != best:
            shutil.rmtree(folder, ignore_errors=True)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self._writer is not None:
            self._writer.begin()
        super()._save_checkpoint(model, trial)
        if self._writer is not None:
            self._writer.end()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Run an epoch, unless the run is at its last step already."""
        # Transformers checks for the end only after a step, so a run resumed from its last step would make another.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def count_tokens_from(self, tokens: int) -> None:
        """Continue the token count of the checkpoint; TRL starts from zero in each process."""
        self._total_train_tokens = tokens

    def gathered_weights(self) -> dict[str, Any]:
        """Return the full weights of a sharded model on rank 0; every rank must call it."""
        weights: dict[str, Any] = self.accelerator.get_state_dict(self.model_wrapped) or {}
        # Gathering breaks the link between tied weights, and each would be saved twice.
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        return {name: tensor for name, tensor in weights.items() if name not in tied}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: checkpoints get no model card."""

    def _send_telemetry(self) -> None:
        """Do nothing: no telemetry is sent."""


def _save_without_card(
    model: nn.Module, save: Callable[..., None], output_dir: str | None, state_dict: dict[str, Any] | None
) -> None:
    """Save without PEFT's model card."""
    with without_card(model):
        save(output_dir, state_dict)


@contextmanager
def without_card(model: nn.Module) -> Iterator[None]:
    """Stop PEFT from writing a model card, which would contain paths of this machine."""
    if not isinstance(model, PeftModel):
        yield
        return
    # An instance attribute shadows the method; deleting it afterwards restores the class's.
    model.create_or_update_model_card = _no_card
    try:
        yield
    finally:
        del model.create_or_update_model_card


def _no_card(output_dir: str) -> None:
    """Do nothing."""


class StopWhenWorse(EarlyStoppingCallback):
    """Stops when the eval loss no longer improves; a resumed run continues the patience counter."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the counter from the checkpoint."""
        super().on_train_begin(args, state, control, **kwargs)
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if isinstance(saved, dict):
            self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
            # The run had already stopped early and was killed before it saved its result.
            control.should_training_stop = self.early_stopping_patience_counter >= self.early_stopping_patience


class ContinueTokenCount(TrainerCallback):
    """Continues the token count of a resumed run."""

    trainer: ExactTrainer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the count from the checkpoint."""
        if self.trainer is not None:
            self.trainer.count_tokens_from(int(state.num_input_tokens_seen))
