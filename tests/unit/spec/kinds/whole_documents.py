"""A spec of each kind in which every key of the kind stands; keys that exclude each other are spread over several."""

from __future__ import annotations

import copy
import functools
from typing import Any

from tunefleet.spec import parse_value

_AROUND = """
resources:
  replicas: 1
  processes: 1
  nodes: 1
  estimatedLoad: 3
  tags: [lab]
  hardware: {cpu: "8", memory: 64.5Gi, disk: 100Gi, gpu: {count: 1, type: A100, memory: 46Gi}}
output:
  destination: {type: http, url: "http://host:8000/api/v1/results", method: post, timeoutSec: 15, retries: 2,
                retryBackoffSec: 0.8, headers: {Authorization: Bearer dev-token, Content-Type: application/json}}
  artifacts: [responses.json, results.json, logs]
retry: {max_attempts: 2, backoff_s: 1, on: [network]}
priority: 3
sloSeconds: 3600
limits: {max_runtime_s: 10, max_queue_s: 20, stall_after_s: 30}
on_lost: wait
"""

_TRAINED = """
model:
  source: {type: huggingface, identifier: some/model, revision: main, trust_remote_code: true}
  transformers: {device_map: auto, dtype: bf16, low_cpu_mem_usage: true, attn_implementation: sdpa,
                 trust_remote_code: false}
  config: {fp16: false, bf16: true, device_map_auto: true}
on_oom: fail
on_nan: rollback
on_stall: restart
trainer: trl
checkpoint: {load: {type: local, path: ./adapter, archive_format: zip, subdir: a/b}, compress: zstd, asynchronous: true,
             upload: true}
"""

_COMMON_TRAINING = """
num_train_epochs: 2
max_steps: 5
batch_size: 4
eval_batch_size: 8
gradient_accumulation_steps: 2
learning_rate: "5e-7"
lr_scheduler_type: cosine
warmup_steps: 3
weight_decay: 0.1
max_grad_norm: 1
optim: adamw_torch
seed: 7
gradient_checkpointing: true
bf16: true
fp16: false
attn_implementation: sdpa
logging_steps: 5
save_strategy: steps
save_steps: 20
save_total_limit: 3
save_model: true
eval_strategy: steps
eval_steps: 10
load_best_model_at_end: true
report_to: [wandb]
project: adapters
group: sweep-a
dataloader_num_workers: 1
dataset_num_proc: 2
allow_multi_gpu: false
nproc_per_node: 1
primary_gpu: 0
visible_devices: "0"
parallelism: ddp
ddp_find_unused_parameters: true
"""

_OF_TRAINING_KINDS = {
    "sft": """
data: {dataset_name: a/b, config_name: main, split: "train[:5%]", revision: main, trust_remote_code: false,
       prompt_column: q, response_column: a, separator: "|", as_chat: true, max_samples: 10,
       eval: {split: test, max_samples: 5}}
evaluate: {answers: 2, max_new_tokens: 5, exact_match: {rows: 3, extract: regex, pattern: a}}
predictions: {enabled: true, sample_count: 2, sample_frequency: eval, max_new_tokens: 3}
training: {max_seq_length: 99, packing: true, completion_only_loss: true, append_eos: false, liger: false,
           neftune_noise_alpha: 5, early_stopping: {patience: 2, threshold: 0.1}}
""",
    "lora_sft": """
data: {jsonl: {path: ./a.jsonl, url: "https://x/a.jsonl", worker_path: /a.jsonl, headers: {A: b},
               download_timeoutSec: 5, prompt_field: p, response_field: r, separator: " "}, eval: {fraction: 0.1}}
lora: {r: 8, alpha: 16, dropout: 0, bias: all, target_modules: all-linear, task_type: CAUSAL_LM, use_rslora: true,
       use_dora: true, modules_to_save: [lm_head]}
quantization: {load_in_4bit: true, load_in_8bit: false, quant_type: fp4, double_quant: false, compute_dtype: float32}
training: {group_by_length: true}
""",
    "dpo": """
data: {jsonl: {path: ./a.jsonl, prompt_field: p, chosen_field: c, rejected_field: r}, separator: "|",
       eval: {path: ./e.jsonl}}
lora: {r: 8}
quantization: {load_in_8bit: true}
training: {save_freq: 20, beta: 0.2, loss_type: robust, label_smoothing: 0.1, max_prompt_length: 50, append_eos: false,
           precompute_ref_log_probs: true}
""",
    "kto": """
data: {jsonl: {path: ./a.jsonl, prompt_field: p, completion_field: c, label_field: l}, separator: "|",
       eval: {path: ./e.jsonl}}
lora: {r: 8}
quantization: {load_in_4bit: true}
training: {save_freq: 20, beta: 0.2, loss_type: apo_zero_unpaired, desirable_weight: 2, undesirable_weight: 0.5,
           max_prompt_length: 50, precompute_ref_log_probs: true}
""",
    "orpo": """
data: {jsonl: {path: ./a.jsonl, prompt_field: p, chosen_field: c, rejected_field: r}, separator: "|",
       eval: {path: ./e.jsonl}}
lora: {r: 8}
quantization: {load_in_4bit: true}
training: {save_freq: 20, beta: 0.2, max_prompt_length: 50}
""",
    "reward": """
data: {jsonl: {path: ./a.jsonl, prompt_field: p, chosen_field: c, rejected_field: r}, separator: "|",
       eval: {path: ./e.jsonl}}
lora: {r: 8}
quantization: {load_in_4bit: true}
training: {save_freq: 20, center_rewards_coefficient: 0.01, max_prompt_length: 50}
""",
    "grpo": """
data: {jsonl: {path: ./a.jsonl, prompt_field: p, reference_field: r}, separator: "|", eval: {path: ./e.jsonl}}
lora: {r: 8}
quantization: {load_in_4bit: true}
reward_model: {identifier: some/classifier}
rewards:
  - {type: exact_match, weight: 2, pattern: "= (.*)"}
  - {type: regex, weight: 1, pattern: a, whole: true}
  - {type: format, weight: 1, tags: [think]}
  - {type: length, weight: 1, min_tokens: 1, max_tokens: 5}
  - {type: function, weight: 1, function: "mine.rewards:good"}
generation: {max_new_tokens: 5, temperature: 0.7, top_p: 0.9, top_k: 10, min_p: 0.1, repetition_penalty: 1.1}
training: {save_freq: 20, num_generations: 4, num_iterations: 2, epsilon: 0.1, epsilon_high: 0.3, beta: 0.1,
           mask_truncated_completions: true, loss_type: dr_grpo, scale_rewards: none}
""",
    "rloo": """
data: {jsonl: {path: ./a.jsonl, prompt_field: p}, separator: "|", eval: {path: ./e.jsonl}}
lora: {r: 8}
quantization: {load_in_4bit: true}
reward_model: {taskId: t}
rewards: [{type: regex, pattern: a}]
generation: {maxNewTokens: 5}
training: {save_freq: 20, num_generations: 4, num_iterations: 2, epsilon: 0.1, beta: 0.1, normalize_advantages: true,
           mask_truncated_completions: true, max_seq_length: 64}
""",
    "ppo": """
lora: {r: 8}
quantization: {load_in_4bit: true}
data: {jsonl: {path: ./a.jsonl, query_field: q, response_field: r}, eval: {path: ./e.jsonl}}
training: {per_device_train_batch_size: 4, mini_batch_size: 1, num_mini_batches: 1, steps: 50, ppo_epochs: 4,
           kl_coef: 0.1, temperature: 0.7, target_kl: 0.1, early_stopping: false, optimize_cuda_cache: true,
           save_freq: 20, log_with: wandb, tracker_project_name: p, group: g, save_safetensors: true,
           padding_side: left, max_seq_length: 512}
reward_model: {identifier: some/classifier, type: sentiment, scale: 2, max_length: 256, positive_label: POS,
               negative_label: NEG, trust_remote_code: false}
generation: {max_new_tokens: 5, temperature: 0.7, top_p: 0.9, top_k: 10, stop: [a], do_sample: true}
""",
}
_LEFT_OUT = {
    **{kind: ("save_steps",) for kind in ("dpo", "kto", "orpo", "reward", "grpo", "rloo")},
    "ppo": ("save_steps", "batch_size", "max_steps", "report_to", "project", "group"),
}

_GENERATES = """
model:
  source: {type: huggingface, identifier: some/model}
  transformers: {device_map: cpu, dtype: float16, trust_remote_code: true, low_cpu_mem_usage: true, load_in_8bit: false,
                 load_in_4bit: true, use_flash_attention_2: true, attn_implementation: flash_attention_2}
  vllm: {tensor_parallel_size: 1, gpu_memory_utilization: 0.85, max_model_len: 4096, dtype: half, download_dir: /m,
         max_num_batched_tokens: 2048, max_cudagraph_capture_size: 64, enable_mm_embeds: true,
         limit_mm_per_prompt: {image: 1}, quantization: awq, kv_cache_dtype: fp8, enforce_eager: true,
         hf_token: "${secret:HF_TOKEN}", tokenizer_revision: main, revision: main, cpu_offload_gb: 1, swap_space: 4,
         trust_remote_code: true, seed: 1, rope_scaling: {factor: 2}, rope_theta: 10000, env_vars: {VLLM_X: 1},
         convert: auto, release_after_run: true}
  adapters:
    - {type: lora, name: mine, path: ./a, taskId: task-1, url: "https://x/a.tar.gz", id: one, apply: merge,
       archive_format: tar.gz, headers: {A: b}, scale: 0.5}
    - {path: ./b, revision: main, adapter_id: two}
checkpoint: {load: {type: http, url: "https://x/m.tar.gz", headers: {A: b}, timeoutSec: 5}}
parallel: {enabled: true, max_shards: 4}
"""

_OTHERS = {
    "inference": _GENERATES
    + """
data: {type: dataset, url: openai/gsm8k, name: main, split: "train[:100]", column: question, shuffle: true, seed: 1,
       buffer_size: 10, revision: main, trust_remote_code: false, metadata_columns: {answer: reference},
       metadata_include_all: false}
inference: {system_prompt: Think., temperature: 0.2, top_p: 0.9, top_k: 5, min_p: 0.1, max_tokens: 50, min_tokens: 1,
            presence_penalty: 1, frequency_penalty: -1, repetition_penalty: 1.1, stop: "###", stop_token_ids: [2],
            bad_words: [x], do_sample: true, seed: 3, n: 2, skip_special_tokens: false, logprobs: 5,
            chat_template_kwargs: {thinking: false},
            templates: [{name: year, type: int, min: 1900, max: 2100}, {name: sort, candidates: [a, b]}]}
postprocess:
  jsonl_export:
    path: artifacts/pairs.jsonl
    fields:
      prompt: prompt
      response: {from: output}
      reference: {source: metadata, key: reference, fallback: item.answer, default: "-"}
      kind: {from: literal, value: made}
      other: {from: literal, literal: 1}
    required_fields: [prompt, response]
""",
    "chat": _GENERATES.replace("parallel: {enabled: true, max_shards: 4}\n", "")
    + """
inference: {system_prompt: Think., temperature: 0.2, top_p: 0.9, top_k: 5, max_tokens: 50, stop: "###", seed: 3,
            chat_template: true}
idle_s: 60
""",
    "serve": _GENERATES.replace("parallel: {enabled: true, max_shards: 4}\n", "")
    + """
inference: {system_prompt: Think., temperature: 0.2, max_tokens: 50}
serve: {name: support-bot, wait_s: 30, requests_per_minute: 60}
accessMode: forward
ttlSeconds: 3600
""",
    "embedding": """
model: {source: {identifier: some/model, revision: main, trust_remote_code: true},
        transformers: {device_map: auto, dtype: bf16, attn_implementation: sdpa}}
checkpoint: {load: {type: local, path: ./weights, archive_format: zip}}
enforce_cpu: false
embedding: {normalize: false, batch_size: 8, prefix: "passage: ", pooling: cls, max_length: 64, inline: true}
data: {type: list, items: [a, {node: n, path: items.0}], metadata: [{}, {}]}
""",
    "rag": """
qdrant: {url: "http://localhost:6333", api_key: "${secret:QDRANT_API_KEY}", collection: notes, timeoutSec: 5}
embedding: {model: sentence-transformers/all-MiniLM-L6-v2, revision: main, trust_remote_code: true, normalize: true,
            batch_size: 4, prefix: "query: ", pooling: mean, max_length: 32}
search: {top_k: 5, score_threshold: 0.5, filter: {must: [{key: metadata.year, match: {value: 2026}}]}}
data: {type: list, items: [a], items_metadata: [{}]}
""",
    "rag_index": """
qdrant: {collection: notes, artifact: old-notes}
embedding: {model: ./mine}
chunking: {size: 100, overlap: 10, by: characters}
mode: recreate
distance: euclid
data: {type: list, items: [a], metadata: [{source: a.md}]}
""",
    "merge": """
model:
  source: {type: huggingface, identifier: some/model, revision: main, trust_remote_code: false}
  adapters:
    - {type: lora, name: mine, path: ./a, taskId: task-1, url: "https://x/a.tar.gz", id: one, apply: merge,
       archive_format: tar.gz, headers: {A: b}, weight: 0.5}
    - {path: ./b, scale: 0.5}
merge: {into: base, dtype: bf16, verify: false, gguf: {type: q4_k_m, name: mine.gguf}}
checkpoint: {load: {type: local, path: ./weights, archive_format: zip}}
""",
    "verify": """
model:
  source: {type: huggingface, identifier: some/model, revision: main, trust_remote_code: false}
  tokenizer: ./tokenizer
verify: {forward: false, chat_template: true}
""",
    "push": """
checkpoint: {load: {type: local, taskId: task-1, filename: final_lora}}
push: {to: "hf://org/name", private: true, revision: v1, message: First round, force: true,
       hf_token: "${secret:HUB_TOKEN}"}
""",
    "evaluate": _GENERATES.replace("parallel: {enabled: true, max_shards: 4}\n", "").replace(
        "{path: ./b, adapter_id: two}", "{path: ./b, adapter_id: two, apply: runtime}"
    )
    + """
evaluations:
  - {type: loss, name: held_out, data: {path: ./rows.jsonl, prompt_column: q, response_column: a}, max_seq_length: 64,
     completion_only_loss: true, batch_size: 2}
  - type: exact_match
    data: {dataset_name: openai/gsm8k, config_name: main, split: "test[:9]", prompt_column: q, response_column: a}
    generation: {system_prompt: Think., max_tokens: 9, temperature: 0.5, top_p: 0.9, repetition_penalty: 1.1, stop: [x],
                 seed: 1, chat_template_kwargs: {thinking: false}}
    match: {extract: regex, pattern: "= (.*)", ignore_case: false, ignore_space: false, ignore_punctuation: true}
    apply_chat_template: true
  - {type: lm_eval, tasks: [mine, mmlu], include_path: ./tasks, num_fewshot: 2, limit: 5, batch_size: 4, run_code: true}
interval: {confidence: 0.9, resamples: 200, seed: 1}
gates: [{metric: accuracy, use: low, at_least: 0.5, at_most: 1}]
""",
    "api": """
api: {url: "https://x/v1", method: post, headers: {A: "${secret:KEY}"}, params: {a: 1}, json: {prompt: "{{prompt}}"},
      timeout_sec: 5, verify_tls: false, follow_redirects: false, retries: 10, concurrency: 8,
      response: {parse_json: false, return_body: false, include_headers: true, max_body_bytes: 10,
                 raise_for_status: false}}
data: {type: list, items: [a]}
""",
    "python": """
code: "def main(inputs):\\n    return {'metrics': {'a': len('${x}')}}"
entrypoint: main
requirements: [numpy==2.1, "requests[socks]>=2"]
inputs: [prepare, {stage: other, mountPath: null}]
timeoutSeconds: 3600
network: bridge
env: {MODE: fast, KEY: "${secret:KEY}", NUMBER: 3}
emits: [a]
pythonOutput: {maxBytes: 1000}
upstream: {prepare: task-1}
""",
    "data": """
sources:
  - {dataset_name: openai/gsm8k, config_name: main, split: "train[:9]", revision: main, trust_remote_code: false,
     max_samples: 5, weight: 2, name: maths}
  - {rows: [{a: 1}]}
  - jsonl: {download_url: "https://x/a", url: "https://x/b", path: ./c.jsonl, worker_path: /d, headers: {A: b},
            download_timeoutSec: 3}
steps:
  - convert: {to: text, from: alpaca, system: Be kind., separator: " ", tokenizer: some/model, keep: [id]}
  - mix: {seed: 1, until: all_exhausted}
  - filter:
      column: text
      equals: a
      not_equals: b
      in: [a]
      not_in: [b]
      gt: 1
      ge: 1
      lt: 2
      le: 2
      min_chars: 1
      max_chars: 9
      min_words: 1
      max_words: 9
      min_tokens: 1
      max_tokens: 9
      min_items: 1
      max_items: 9
      matches: a
      not_matches: b
      not_empty: true
      tokenizer: some/model
      all: [{column: a, equals: 1}]
      any: [{column: a, equals: 1}]
      not: {column: a, equals: 1}
  - map: {chat: {talk: {role: from, content: value, roles: {human: user}}}}
  - slice: {start: 1, stop: 9}
  - map: {strip: [a], cast: {a: int}, rename: {a: b}, template: {c: "{b}"}, constant: {d: 1}, drop: [b], keep: [c]}
  - dedupe: {columns: [c], normalise: true, near: {threshold: 0.5, ngram: 2, permutations: 64}}
  - shuffle: {seed: 1}
  - sample: {count: 5, seed: 1}
  - sample: {fraction: 0.5}
  - limit: 4
  - split: {test: 1, validation: 0.1, seed: 2}
format: parquet
on_bad: drop
""",
    "command": """
command: [python, train.py, 3]
workdir: ./mine
files: [a.json, "https://x/b.json"]
env: {MODE: fast}
environment: axolotl
outputs: {summary: out/summary.json}
checkpoint: {upload: false}
""",
    "echo": "data: {type: list, items: [a], metadata: [{}]}\nparallel: {enabled: true}\n",
}

_VERIFIED = "data: {dataset_name: d, prompt_column: p, reference_column: r}\nrewards: [{type: exact_match}]"

EXTRA: dict[str, list[str]] = {
    "chat": ["model: {source: {identifier: m}}\nenforce_cpu: true"],
    "serve": ["model: {source: {identifier: m}}\nenforce_cpu: true\naccessMode: proxy\nreadinessTimeoutSeconds: 60"],
    "verify": [
        "model: {source: {identifier: m}}\nenforce_cpu: true",
        "model: {source: {identifier: m}}\n"
        'engine: {type: slurm, partition: gpu, account: lab, qos: high, time: "4:00:00", constraint: ib, '
        "reservation: us, gpu_type: a100, exclusive: true}",
        "model: {source: {identifier: m}}\nengine: ray",
    ],
    "push": [
        "checkpoint: {load: {path: ./weights}}\n"
        'push: {to: "s3://bucket/models/x", access_key: "${secret:KEY}", secret_key: "${secret:SECRET}"}'
    ],
    "evaluate": [
        "model: {source: {identifier: m}}\nevaluations: [{type: loss, data: {path: a, eval: null, streaming: null}}]"
    ],
    "merge": [
        "model: {source: {identifier: m}, adapters: [{path: ./a}, {path: ./b}]}\n"
        f"merge: {{into: adapter, method: {method}}}"
        for method in (
            "dare_ties, density: 0.2, majority_sign: frequency, seed: 3",
            "svd, svd_rank: 4",
            "cat",
            "linear",
        )
    ],
    "sft": [
        "data: {path: ./a.csv, text_field: t}\ntraining: {warmup_ratio: 0.1, resume_from_path: ./m, zero_stage: 9}",
        "data: {artifact: rows, messages_field: m, streaming: true, shuffle_buffer: 5}\n"
        "training: {max_steps: 3, auto_deepspeed: true, auto_deepspeed_stage: 0}",
        'data: {jsonl_path: ./a.jsonl, prompt_field: p, response_field: r}\ntraining: {deepspeed: "./zero.json"}',
        "data: {prompts: [a]}\nmodel: {source: {identifier: m}, transformers: {use_flash_attention_2: true}}\n"
        "checkpoint: {load: {uri: 'file:///m'}}",
        "data: {jsonl: {download_url: 'https://x', download_headers: {A: b}, timeoutSec: 3, text_field: t}}\n"
        "checkpoint: {load: {taskId: t, filename: a.tar.gz, base_url: 'http://h'}}",
        "data: {jsonl: {worker_path: /a, timeout: 3}}\ncheckpoint: {load: {task_id: t}}",
    ],
    "lora_sft": [
        "data: {prompts: [a]}\nmodel: {source: {identifier: m}, transformers: {load_in_8bit: true}}",
        "data: {prompts: [a]}\nmodel: {source: {identifier: m}, transformers: {load_in_4bit: true}}",
        *(
            "data: {path: ./a.csv, text_field: t}\nshard: {index: 3, total: 9, contiguous: true}\n"
            "federation: {workers: 9, split: {by: dirichlet, column: t, alpha: 0.3}, min_workers: 5, rounds: 4,\n"
            f"  sync_every_steps: 20, deadline_s: 60, wait_s: 30, upload_dtype: bf16, strategy: {{name: {strategy}}}}}"
            for strategy in (
                "fedavg_exact, weighting: examples, max_examples: 9, clip_norm: 1, output: rank, rank: 4",
                "fedprox, mu: 0.1",
                "fedadam, beta1: 0.9, beta2: 0.9, tau: 0.1, server_lr: 0.1",
                "diloco, momentum: 0.5",
                "trimmed_mean, trim: 0.3",
                "multi_krum, byzantine: 1, keep: 2",
            )
        ),
    ],
    "dpo": [
        "data: {preferences: [{prompt: p, chosen: c, rejected: r}]}",
        "data: {dataset_name: d, prompt_column: p, chosen_column: c, rejected_column: r, max_samples: 3}\n"
        "training: {save_steps: 3}",
    ],
    "kto": [
        "data: {examples: [{prompt: p, completion: c, label: true}]}",
        "data: {dataset_name: d, prompt_column: p, completion_column: c, label_column: l, max_samples: 3}\n"
        "training: {save_steps: 3}",
    ],
    "orpo": [
        "data: {preferences: [{prompt: p, chosen: c, rejected: r}]}",
        "data: {dataset_name: d, prompt_column: p, chosen_column: c, rejected_column: r}\ntraining: {save_steps: 3}",
    ],
    "reward": [
        "data: {preferences: [{prompt: p, chosen: c, rejected: r}]}",
        "data: {dataset_name: d, prompt_column: p, chosen_column: c, rejected_column: r}\ntraining: {save_steps: 3}",
    ],
    "grpo": [
        "data: {prompts: [a]}\nrewards: [{type: length, max_tokens: 5}]",
        f"{_VERIFIED}\ntraining: {{save_steps: 3}}",
    ],
    "rloo": [
        "data: {prompts: [a]}\nreward_model: {identifier: r}",
        f"{_VERIFIED}\ntraining: {{save_steps: 3}}",
    ],
    "ppo": [
        "data: {prompts: [a]}\nreward_model: {identifier: r}\n"
        "training: {batch_size: 4, max_steps: 3, report_to: wandb}",
        "data: {dataset_name: d, prompt_column: p, separator: x}\nreward_model: {identifier: r}\n"
        "training: {save_steps: 5}",
    ],
    "inference": [
        "data: {type: list, items: [a]}\ninference: {systemPrompt: s, maxTokens: 5, topP: 0.5, stopTokenIds: [1]}\n"
        "shard: {index: 1, total: 3, contiguous: false}",
        "data: {type: dataset, url: d, metadata_columns: [a, b]}\ninference: {max_new_tokens: 5, temperature: 0, "
        "do_sample: false, templates: {type: object}}",
    ],
    "rag": [
        "qdrant: {url: 'http://q', collection: c}\nquery: what?",
        "qdrant: {path: ./notes, collection: c}\nquery: what?",
        "qdrant: {taskId: t, collection: c}\nquery: what?",
        "qdrant: {artifact: notes, collection: c}\nquery: what?",
    ],
    "rag_index": [
        "qdrant: {url: 'http://q', api_key: '${secret:KEY}', collection: c, timeoutSec: 3}\n"
        "data: {type: list, items: [a]}",
        "qdrant: {taskId: t, collection: c}\ndata: {type: list, items: [a]}",
    ],
    "api": ["api: {body: {a: 1}}", "api: {data: {a: 1}}"],
    "embedding": ["data: {type: list, items: [a], items_metadata: [{}]}\nshard: {index: 0, total: 1}"],
    "echo": [
        "output: {destination: {type: s3, url: s3://bucket/a, access_key: '${secret:A}', secret_key: '${secret:B}'}}",
        "data: {items: [a], items_metadata: [{}]}\nshard: {index: 0, total: 2}",
        "output: {destination: {type: local, path: ./here}}",
    ],
    "python": ["code: 'main = print'"],
    "data": [
        "sources: [{path: ./a.jsonl, eval: null}]",
        "sources: [{path: ./a.jsonl}]\nsteps: [{convert: messages}]\nparallel: {enabled: true, max_shards: 2}",
        "sources: [{artifact: a}, {jsonl_path: ./a.jsonl}]\nshard: {index: 0, total: 2}",
        "sources: [{jsonl: {url: 'https://x', download_headers: {A: b}, timeoutSec: 3}}]",
        "sources: [{jsonl: {url: 'https://x', timeout: 3}}]",
        "sources: [{rows: [{q: 1, a: 2}]}]\npreview: {model: m, rows: 3, max_seq_length: 64, "
        "completion_only_loss: true, prompt_column: q, response_column: a, separator: ' ', as_chat: true}",
        "sources: [{rows: [{a: 1}]}]\npreview: {model: m, text_field: a}",
        "sources: [{rows: [{chat: []}]}]\npreview: {model: m, messages_field: chat}",
    ],
    "command": ["command: [ls]"],
}
_MODEL = {"source": {"identifier": "m"}}


def whole(kind: str) -> dict[str, Any]:
    """Return a spec with as many keys as can stand together."""
    return copy.deepcopy(_whole(kind))


@functools.cache
def _whole(kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"taskType": kind, **parse_value(_AROUND)}
    if kind in _OF_TRAINING_KINDS:
        own = parse_value(_OF_TRAINING_KINDS[kind])
        training = parse_value(_COMMON_TRAINING) | own.pop("training", {})
        for key in _LEFT_OUT.get(kind, ()):
            training.pop(key, None)
        spec |= parse_value(_TRAINED) | own | {"training": training}
    else:
        spec |= parse_value(_OTHERS[kind])
    return spec


def specs(kind: str) -> list[dict[str, Any]]:
    """Return the specs of a kind that together have every key."""
    needs_model = kind in _OF_TRAINING_KINDS or kind in {"inference", "embedding"}
    model = {"model": _MODEL} if needs_model else {}
    return [whole(kind), *({"taskType": kind, **model, **parse_value(text)} for text in EXTRA[kind])]
