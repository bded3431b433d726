"""TRL's SFT trainer with an exact eval loss: the mean over tokens, not over batches of unequal size.

Other differences are in `exact_trainer`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import SFTTrainer

from tunefleet.workloads.training.exact_trainer import ExactTrainer, preserve_random_state
from tunefleet.workloads.training.label_scores import score_labels_only
from tunefleet.workloads.training.streaming import (
    POSITION_FILE,
    POSITION_KEY,
    SampleStream,
    StreamPosition,
    StreamShare,
    loader,
)


class Trainer(ExactTrainer, SFTTrainer):
    """Trains on rows that are already tokenized."""

    _loss_sum = 0.0
    _loss_tokens = 0
    _stream: SampleStream | None = None
    _position = StreamPosition()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        score_labels_only(self.model)

    def held_out_loss(self) -> float:
        """Return the eval loss: the exact mean over trained tokens, in nats.

        Does not call callbacks; use `evaluate` for evaluations during training.
        """
        with preserve_random_state():
            output = self.evaluation_loop(self.get_eval_dataloader(), "eval loss", prediction_loss_only=True)
        return float(output.metrics["eval_loss"])

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the usual loop, and replace the mean of batch means by the exact mean."""
        self._loss_sum, self._loss_tokens = 0.0, 0
        output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        loss_sum, tokens = self._loss_sum, self._loss_tokens
        if self.args.world_size > 1:
            # Float32 would round the token count; NCCL needs tensors on its device.
            sums = torch.tensor([loss_sum, tokens], dtype=torch.float64, device=self.args.device)
            loss_sum, tokens = self.accelerator.reduce(sums, "sum").tolist()
        output.metrics[f"{prefix}_loss"] = loss_sum / max(tokens, 1)
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """Add one batch to the sums; the full logits are never computed."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            output = model(**inputs, use_cache=False, fused_lm_head=True)
        loss = -output.log_probs.sum(dtype=torch.float32)
        tokens = output.label_mask.sum()
        self._loss_sum += loss.item()
        self._loss_tokens += int(tokens.item())
        return loss / tokens.clamp(min=1), None, None

    def train_on_stream(self, stream: SampleStream, position: StreamPosition) -> None:
        """Train on a stream from a position on instead of on the dataset of the trainer."""
        self._stream, self._position = stream, position

    def get_train_dataloader(self) -> Any:
        """Return the data loader of the stream, if there is one."""
        if self._stream is None:
            return super().get_train_dataloader()
        args, batch = self.args, self._train_batch_size
        share = StreamShare(self._stream, self._position, batch=batch, rank=args.process_index, world=args.world_size)
        pin = args.dataloader_pin_memory
        return loader(share, self.data_collator, batch=batch, workers=args.dataloader_num_workers, pin=pin)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Record the stream position after the batches of the next step."""
        batches, items = super().get_batch_samples(*args, **kwargs)
        for batch in batches:
            self._position = batch.pop(POSITION_KEY, self._position)
        return batches, items

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self._stream is not None and self.args.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            (folder / POSITION_FILE).write_text(json.dumps(self._position.as_json()), encoding="utf-8")


class StreamEpoch(TrainerCallback):
    """Sets the epoch of a stream, which has no length, to the fraction of steps made; the same after a resume."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the epoch."""
        state.epoch = state.global_step / state.max_steps
