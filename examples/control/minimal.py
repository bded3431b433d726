"""The minimum for controlling a script: one callback.

python examples/control/minimal.py &
tunefleet control save minimal
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tunefleet import TrainerControlCallback

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2))
rows = [{"input_ids": (tokens := (torch.arange(32) + n) % 64), "labels": tokens} for n in range(4096)]
args = TrainingArguments("control-minimal", max_steps=3000, logging_steps=200, save_strategy="no", report_to=[])

trainer = Trainer(model=model, args=args, train_dataset=rows, callbacks=[TrainerControlCallback(job_id="minimal")])
trainer.train()
