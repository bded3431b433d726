"""One launch of the stock Trainer for `exactness.py`: `python _exactness_run.py KIND FOLDER STEPS SAVE_EVERY`.

KIND is map or stream. Each step's loss is appended to `losses.jsonl`, and the newest checkpoint is gone on from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

ROWS, LENGTH, WORDS = 64, 24, 64


class Losses(TrainerCallback):
    """Writes what was logged, at once."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_kwargs: Any) -> None:
        if "loss" in logs:
            self._file.write(json.dumps([state.global_step, logs["loss"]]) + "\n")


def main() -> None:
    """Train to the end, or until killed."""
    kind, folder, steps, save_every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    ids = torch.randint(2, WORDS, (ROWS, LENGTH)).tolist()
    rows: Any = Dataset.from_dict({"input_ids": ids, "labels": ids})
    if kind == "stream":
        rows = rows.to_iterable_dataset().shuffle(seed=1, buffer_size=16)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, attention_dropout=0.2, **sizes))
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"), max_steps=steps, per_device_train_batch_size=2, logging_steps=1,
        save_steps=save_every, report_to="none", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, seed=3,
        learning_rate=1e-2,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Losses(folder / "losses.jsonl")])
    last = get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).is_dir() else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
