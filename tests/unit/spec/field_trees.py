"""The documents that the public systems ship as examples, field for field."""

from __future__ import annotations

HTTP = (
    "{destination: {type: http, url: 'http://host:8000/api/v1/results', timeoutSec: 1800}, artifacts: [responses.json]}"
)

E1 = """\
apiVersion: mloc/v1
kind: SFTTask
metadata: {name: sft-llama-3b, owner: team, annotations: {description: two GPUs}}
spec:
  taskType: sft
  resources: {replicas: 1, hardware: {cpu: "8", memory: 32GiB, gpu: {count: 2, type: any}}}
  model: {source: {type: huggingface, identifier: meta-llama/Llama-3.2-3B-Instruct}}
  data:
    dataset_name: openai/gsm8k
    config_name: main
    split: "train[:5%]"
    prompt_column: question
    response_column: answer
    separator: "\\n\\n"
    max_samples: 200
  training:
    {allow_multi_gpu: true, visible_devices: "0,1", num_train_epochs: 2, batch_size: 2, gradient_accumulation_steps: 4,
     learning_rate: 2e-5, max_seq_length: 512, logging_steps: 5, save_steps: 50, save_strategy: steps,
     save_model: false, gradient_checkpointing: true, packing: false, fp16: false, bf16: true,
     deepspeed: {train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 4, gradient_clipping: 1.0,
                 steps_per_print: 100,
                 zero_optimization: {stage: 2, overlap_comm: true, contiguous_gradients: true,
                                     reduce_bucket_size: 50000000, allgather_bucket_size: 50000000},
                 bf16: {enabled: true}, wall_clock_breakdown: false}}
  output: {destination: {type: local, path: ./sft_llama_3b}, artifacts: [responses.json]}
"""

E2 = """\
apiVersion: mloc/v1
kind: LoRASFTTask
metadata: {name: two-stage}
spec:
  taskType: lora_sft
  resources: {hardware: {cpu: 4, memory: 16Gi, gpu: {count: 1, type: any}}}
  model: {source: {type: huggingface, identifier: meta-llama/Llama-3.2-1B-Instruct}}
  lora: {r: 16, alpha: 32, dropout: 0.05, bias: none, target_modules: [q_proj, v_proj], task_type: CAUSAL_LM,
         use_rslora: false}
  output:
    destination:
      type: http
      url: http://host:8000/api/v1/results
      method: POST
      timeoutSec: 15
      headers: {Authorization: "Bearer ${secret:RESULTS_TOKEN}", Content-Type: application/json}
    artifacts: [responses.json, final_lora]
  stages:
    - name: gsm8k-stage
      spec:
        data: {dataset_name: openai/gsm8k, config_name: main, prompt_column: question, response_column: answer}
        training: {num_train_epochs: 1, save_model: true}
    - name: humaneval-stage
      spec:
        checkpoint: {load: {type: http, url: "${gsm8k-stage.result.final_lora_archive_url}"}}
        data: {dataset_name: openai/openai_humaneval, split: test, prompt_column: prompt,
               response_column: canonical_solution}
        training: {num_train_epochs: 2}
"""

E3 = f"""\
apiVersion: mloc/v1
kind: TrainingTask
metadata: {{name: synthesise-and-train}}
spec:
  taskType: sft
  resources: {{hardware: {{cpu: 8, memory: 32Gi, gpu: {{type: any, count: 1, memory: 46Gi}}}}}}
  model: {{source: {{type: huggingface, identifier: meta-llama/Llama-3.2-1B-Instruct}}}}
  output: {HTTP}
  stages:
    - name: gsm8k-bootstrap
      spec:
        taskType: inference
        model:
          source: {{type: huggingface, identifier: meta-llama/Llama-3.1-8B-Instruct}}
          vllm: {{gpu_memory_utilization: 0.85, trust_remote_code: true}}
        data: {{type: dataset, url: openai/gsm8k, name: main, split: "train[:100]", column: question, shuffle: true,
               seed: 42, metadata_columns: {{answer: reference_answer}}}}
        inference: {{system_prompt: Think step by step., max_tokens: 512, temperature: 0.2, top_p: 0.9}}
        postprocess:
          jsonl_export:
            path: artifacts/sft_pairs.jsonl
            fields:
              prompt: {{from: metadata, key: prompt}}
              response: {{from: output}}
              reference_answer: {{from: metadata, key: reference_answer}}
            required_fields: [prompt, response]
        output: {HTTP}
    - name: sft-train
      spec:
        taskType: sft
        data:
          jsonl: {{path: "${{gsm8k-bootstrap.result.jsonl_export.path}}",
                  url: "${{gsm8k-bootstrap.result.jsonl_export.url}}",
                  prompt_field: prompt, response_field: response}}
          separator: "\\n"
          max_samples: 100
        training: {{num_train_epochs: 1, auto_deepspeed_stage: 2}}
        output: {HTTP}
"""

E4 = """\
apiVersion: mloc/v1
kind: InferenceTask
metadata: {name: dag-inference}
spec:
  taskType: inference
  resources: {replicas: 1, hardware: {gpu: {count: 1, type: any}}}
  model: {source: {type: huggingface, identifier: m}, vllm: {gpu_memory_utilization: 0.6}}
  parallel: {enabled: false}
  output: {destination: {type: local}}
  graph:
    nodes:
      - name: synthesis
        dependsOn: [branch-a, branch-b]
        spec:
          data:
            type: graph_template
            template:
              name: two_column_briefing
              columns:
                - {label: Supply, node: branch-a, path: "result.items[0].output"}
                - {label: Demand, node: branch-b, path: "result.items[0].output"}
      - name: branch-a
        spec: {data: {type: list, items: ["What drives supply?"]}}
      - name: branch-b
        spec: {data: {type: list, items: ["What drives demand?"]}}
"""

E5 = """\
apiVersion: mloc/v1
kind: TrainingTask
metadata: {name: ppo}
spec:
  taskType: ppo
  resources: {hardware: {gpu: {count: 1, type: any}}}
  model: {source: {type: huggingface, identifier: m}, config: {fp16: true, device_map_auto: true}}
  reward_model: {identifier: cardiffnlp/twitter-roberta-base-sentiment-latest, type: sentiment}
  data: {prompts: [a, b, c, d, e, f, g, h]}
  training: {learning_rate: 1.41e-5, batch_size: 4, mini_batch_size: 1, gradient_accumulation_steps: 4, steps: 50,
             ppo_epochs: 4, seed: 42, save_model: true}
  generation: {max_new_tokens: 64, temperature: 0.7, do_sample: true}
  output: {destination: {type: local}, artifacts: [responses.json, logs]}
"""

E6 = f"""\
apiVersion: mloc/v1
kind: InferenceTask
metadata: {{name: train-then-infer}}
spec:
  taskType: lora_sft
  resources: {{hardware: {{gpu: {{count: 1, type: any}}}}}}
  model: {{source: {{type: huggingface, identifier: m}}}}
  stages:
    - name: lora-train
      spec:
        taskType: lora_sft
        lora: {{r: 8}}
        data: {{dataset_name: d, text_field: text}}
        training: {{num_train_epochs: 1}}
        output: {HTTP}
    - name: lora-infer
      spec:
        taskType: inference
        model:
          adapters:
            - type: lora
              path: ${{lora-train.result.final_lora_path}}
              taskId: ${{lora-train.result.task_id}}
              url: ${{lora-train.result.final_lora_archive_url}}
              apply: merge
          vllm: {{gpu_memory_utilization: 0.6}}
        data: {{type: dataset, url: openai/gsm8k, name: main, split: test, column: question}}
        inference: {{max_tokens: 256}}
        output: {{destination: {{type: local}}}}
"""

E7 = """\
apiVersion: mloc/v1
kind: RetrievalTask
metadata: {name: rag}
spec:
  taskType: rag
  resources: {hardware: {cpu: 2}}
  qdrant: {url: "http://localhost:6333", api_key: "${secret:QDRANT_API_KEY}", collection: notes}
  embedding: {model: sentence-transformers/all-MiniLM-L6-v2}
  search: {top_k: 5}
  data: {type: list, items: ["What is new?"]}
"""

E8 = """\
apiVersion: flowmesh/v1
kind: EchoTask
metadata: {name: conditional}
spec:
  taskType: echo
  graph:
    nodes:
      - {name: decide, spec: {data: {type: list, items: [run-me]}}}
      - name: work
        dependsOn: [decide]
        spec:
          condition: {node: decide, field: "items.0.output", equals: run-me}
          data: {type: list, items: [plain, {node: decide, path: "items[0].output"}]}
"""

E9 = """\
apiVersion: flowmesh/v1
kind: ServeTask
metadata: {name: serve}
spec:
  taskType: serve
  resources: {hardware: {gpu: {count: 1}}}
  model: {source: {identifier: m}, vllm: {dtype: auto}}
  accessMode: forward
  ttlSeconds: 3600
"""

E10 = """\
apiVersion: flowmesh/v1
kind: PythonTask
metadata: {name: python-two-stage}
spec:
  taskType: echo
  stages:
    - {name: prepare, spec: {taskType: echo, data: {type: list, items: [a b, c d e]}}}
    - name: score
      spec:
        taskType: python
        entrypoint: main
        emits: [mean_words]
        timeoutSeconds: 120
        code: |
          def main(inputs):
              return {"rows": 2, "metrics": {"mean_words": 2.5}}
"""
