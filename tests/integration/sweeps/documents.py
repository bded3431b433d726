"""Workflow files of sweeps over the built-in model."""

from __future__ import annotations


def document(sweep: str, *, steps: int = 8, eval_steps: int = 2, rows: int = 64, eval_rows: int = 16) -> str:
    """A LoRA training with evaluations, and its sweep as YAML."""
    return f"""
apiVersion: tunefleet/v1
metadata: {{name: small}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data:
    path: "builtin:extraction"
    messages_field: messages
    max_samples: {rows}
    eval: {{split: "test[:{eval_rows}]"}}
  lora: {{r: 4, alpha: 8, target_modules: [q_proj, v_proj]}}
  training:
    max_steps: {steps}
    batch_size: 4
    max_seq_length: 96
    learning_rate: 1e-3
    logging_steps: 1
    eval_strategy: steps
    eval_steps: {eval_steps}
    save_strategy: "no"
    seed: 0
sweep: {sweep}
"""
