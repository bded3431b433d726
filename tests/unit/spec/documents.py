"""Documents that the tests of the spec share."""

from __future__ import annotations

SMALLEST = """\
apiVersion: tunefleet/v1
spec:
  taskType: lora_sft
  model: {source: {identifier: some/model}}
  data: {path: ./rows.jsonl}
"""

EVERYTHING = """\
apiVersion: flowmesh/v1
kind: LoRASFTTask
metadata:
  name: everything
  owner: ann
  annotations: {description: All keys of a LoRA training.}
spec:
  taskType: lora_sft
  priority: -5
  on_lost: wait
  resources:
    replicas: 1
    estimatedLoad: 3
    tags: [lab]
    hardware:
      cpu: "8"
      memory: 32Gi
      gpu: {count: 1, type: A100, memory: 39.5GiB}
  model:
    source: {type: huggingface, identifier: some/model, revision: main, trust_remote_code: true}
    transformers: {device_map: auto, dtype: bf16, low_cpu_mem_usage: true, use_flash_attention_2: true}
  data:
    dataset_name: openai/gsm8k
    config_name: main
    split: "train[:5%]"
    revision: abc
    prompt_column: question
    response_column: answer
    separator: "\\n"
    max_samples: 100
    eval: {split: test, max_samples: 50}
  lora: {r: 8, alpha: 16, dropout: 0, bias: none, target_modules: [q_proj, v_proj], use_rslora: true, use_dora: false,
         modules_to_save: [lm_head], task_type: CAUSAL_LM}
  quantization: {load_in_4bit: true, quant_type: nf4, double_quant: false, compute_dtype: float32}
  training:
    num_train_epochs: 2
    max_steps: 50
    batch_size: 4
    gradient_accumulation_steps: 2
    learning_rate: 5e-7
    lr_scheduler_type: cosine
    warmup_ratio: 0.1
    weight_decay: 0.01
    max_grad_norm: 0.5
    optim: adamw_torch
    seed: 7
    max_seq_length: 512
    packing: true
    completion_only_loss: true
    gradient_checkpointing: true
    bf16: true
    liger: false
    neftune_noise_alpha: 5
    logging_steps: 5
    save_strategy: steps
    save_steps: 20
    save_total_limit: 3
    save_model: true
    eval_strategy: steps
    eval_steps: 10
    early_stopping: {patience: 2, threshold: 0.01}
    load_best_model_at_end: true
    report_to: tensorboard
    dataloader_num_workers: 2
    dataset_num_proc: 2
    allow_multi_gpu: false
    nproc_per_node: 1
  checkpoint: {load: {type: local, path: ./adapter.tar.gz, archive_format: tar.gz, subdir: final_lora}}
  evaluate: {answers: 3, max_new_tokens: 64}
  output: {destination: {type: http}, artifacts: [responses.json, final_lora]}
  retry: {max_attempts: 2, backoff_s: 1.5, on: [network, crashed]}
  limits: {max_runtime_s: 3600, max_queue_s: 60}
"""

ECHO = """\
apiVersion: mloc/v1
kind: EchoTask
metadata: {name: echo-local}
spec:
  taskType: echo
  data: {type: list, items: [one, two], metadata: [{n: 1}, {n: 2}]}
  output: {destination: {type: local}, artifacts: [responses.json]}
"""


def training(**blocks: str) -> str:
    """Return a full SFT document whose blocks are replaced by the given flow-style YAML."""
    given = {"model": "{source: {identifier: some/model}}", "data": "{path: ./rows.jsonl}", "taskType": "sft"} | blocks
    return "apiVersion: tunefleet/v1\nspec:\n" + "".join(f"  {key}: {value}\n" for key, value in given.items())
