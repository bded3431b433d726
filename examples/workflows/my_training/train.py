"""An ordinary training script with a Hugging Face Trainer, which logs, saves checkpoints and a model."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait after each step, so that you can watch it")
options = parser.parse_args()


class Rest(TrainerCallback):
    """Waits after each step, and writes it to a file."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the step, and wait."""
        with Path("steps.txt").open("a") as diary:
            diary.write(f"{state.global_step}\n")
        time.sleep(options.pace)


torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
rows = [{"input_ids": (tokens := (torch.arange(8) + n) % 64), "labels": tokens} for n in range(256)]
arguments = TrainingArguments(
    "out", max_steps=options.steps, save_steps=4, logging_steps=2, report_to=[], per_device_train_batch_size=2
)
trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, callbacks=[Rest()])
trainer.train()
trainer.save_model("out")
summary = {
    "said": os.environ.get("GREETING"),
    "secrets": [name for name in os.environ if name.startswith("TUNEFLEET_")],
}
Path("summary.json").write_text(json.dumps(summary))
