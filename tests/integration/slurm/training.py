"""A tiny training that gets its node from Slurm."""

from __future__ import annotations


def document(steps: int = 1, *, engine: str = "slurm", hardware: str = "{gpu: {count: 0}}") -> str:
    """One that saves nothing unless it is told to."""
    return f"""apiVersion: tunefleet/v1
metadata: {{name: training}}
spec:
  taskType: lora_sft
  engine: {engine}
  resources: {{hardware: {hardware}}}
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 64}}
  lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
  training: {{max_steps: {steps}, batch_size: 2, max_seq_length: 64, logging_steps: 1, save_steps: 100000}}
"""
