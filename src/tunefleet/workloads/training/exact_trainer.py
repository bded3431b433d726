"""What every trainer of ours does otherwise than its library, whichever library class it extends.

An evaluation leaves the random state as it found it, so that a run with evaluations equals one without; a run that is
resumed from its last step trains no further; checkpoints may be written beside the training; adapters are trained in
float32, also on a quantised base; nothing is reported to the hub and no model card is written into checkpoints.
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

from tunefleet.workloads.training.async_checkpoint import BackgroundWriter, copied, weights_of, write_optimizer
from tunefleet.workloads.training.checkpoint_compression import left_alone, opened
from tunefleet.workloads.training.model import lora

# How the names of weight files and of folders with shards begin.
_WEIGHTS = ("model", "pytorch_model", "adapter_model")


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put every random generator back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class ExactTrainer(transformers.Trainer):
    """To be named before a trainer of a library: `class Ours(ExactTrainer, TheirTrainer)`."""

    best_missing = False
    """Whether the best checkpoint was to be delivered and its weights were gone."""
    _writer: BackgroundWriter | None = None

    def __init__(self, **options: Any) -> None:
        before = lora.kept(options["model"])
        super().__init__(**options)
        if not self.is_deepspeed_enabled:  # it has float32 copies of its own
            lora.train_in_float32(self.model, before, autocast=self.args.bf16 or self.args.fp16)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate during the training, without an effect on it."""
        with random_state_kept():
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        return metrics

    def write_in_background(self, writer: BackgroundWriter) -> None:
        """Write checkpoints in the background from now on."""
        self._writer = writer

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        for_resuming = output_dir is not None and Path(output_dir).name.startswith(PREFIX_CHECKPOINT_DIR)
        save = functools.partial(_save_without_card, self.model, super()._save) if for_resuming else super()._save
        if self._writer is None or not self._writer.saving or output_dir is None:
            save(output_dir, state_dict)
            return
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        weights = copied(weights_of(self.model, adapter=isinstance(self.model, PeftModel)))
        self._writer.submit(functools.partial(save, output_dir, weights))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._writer is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        states = copied(self.optimizer.state_dict()), copy.deepcopy(self.lr_scheduler.state_dict())
        self._writer.submit(functools.partial(write_optimizer, output_dir, *states))

    def _load_best_model(self) -> None:
        if self._writer is not None:
            self._writer.wait()  # the best may be the last, which is just being written
        best = Path(str(self.state.best_model_checkpoint))
        with left_alone():
            self.accelerator.wait_for_everyone()
            folder = opened(best, best.parent.parent / "inputs")
            self.state.best_model_checkpoint = str(folder)
            # Missing files are no error to Transformers: it goes on with the last weights, which somebody must say.
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
        """Run an epoch, unless the checkpoint was the last one: Transformers looks at the end only after a step."""
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def count_tokens_from(self, tokens: int) -> None:
        """Go on counting where the checkpoint was; TRL starts from zero with each process."""
        self._total_train_tokens = tokens

    def whole_weights(self) -> dict[str, Any]:
        """Return the weights of a model that is shared out among ranks, on rank 0; every rank calls it."""
        weights: dict[str, Any] = self.accelerator.get_state_dict(self.model_wrapped) or {}
        # Gathered one by one, weights that are the same tensor are not known to be any more.
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        return {name: tensor for name, tensor in weights.items() if name not in tied}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: a checkpoint is for resuming."""

    def _send_telemetry(self) -> None:
        """Send nothing."""


def _save_without_card(
    model: nn.Module, save: Callable[..., None], output_dir: str | None, state_dict: dict[str, Any] | None
) -> None:
    """Save, but for the card that PEFT writes beside an adapter: it takes longer than the adapter itself."""
    with without_card(model):
        save(output_dir, state_dict)


@contextmanager
def without_card(model: nn.Module) -> Iterator[None]:
    """Let PEFT write no card: it names folders of this machine."""
    if not isinstance(model, PeftModel):
        yield
        return
    model.create_or_update_model_card = _no_card
    try:
        yield
    finally:
        del model.create_or_update_model_card


def _no_card(output_dir: str) -> None:
    """Write none."""


class StopWhenWorse(EarlyStoppingCallback):
    """Stops when the held-out loss no longer falls; a resumed run goes on counting where it was."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the count from the checkpoint."""
        super().on_train_begin(args, state, control, **kwargs)
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if isinstance(saved, dict):
            self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
            # It had stopped already, and was killed before it delivered.
            control.should_training_stop = self.early_stopping_patience_counter >= self.early_stopping_patience


class ContinueTokenCount(TrainerCallback):
    """Lets a resumed training go on counting tokens."""

    trainer: ExactTrainer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Hand the count of the checkpoint over."""
        if self.trainer is not None:
            self.trainer.count_tokens_from(int(state.num_input_tokens_seen))
