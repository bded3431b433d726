"""Code that runs inside a job process; the only package that imports torch, transformers, trl and peft.

    entrypoint       entry of every trainer process: reads `job.json`, runs its program, reports the outcome
    training         SFT and LoRA fine-tuning, and code shared by all training tasks
    preference       DPO, KTO, ORPO, reward models, GRPO and RLOO
    ppo              PPO, in a separate environment
    external_trainers  Axolotl, LLaMA-Factory, Unsloth and plugins
    federated        a training run as a participant of a federation
    data             the `data` block of a spec to tokens; shared by training and preview
    data_pipeline    builds a dataset from other datasets
    engine           warm inference engines: Transformers or vLLM
    inference, chat  batch inference and chat sessions on an engine
    evaluation       metrics and benchmarks of a model
    embedding, rag   text embeddings, and search over them
    merging          adapters into their base model or with each other; GGUF export
    verification     checks that a model is complete
    command, python_function  a user's command; a function from a workflow file
    distributed      ranks, torchrun, sharding
    ray_nodes        Ray clusters with a worker on each node: a Ray job, not a Tunefleet job
    runpod           the handler on RunPod machines
    assets           the model, datasets and examples that ship with the package
    common           job and outputs, Hub models and files, checks of uploaded content

Depends on the job folder and on `trainer_control`, never on the server, the worker or a queue. Unusable data, models
and values raise an error with one sentence for the user.
"""
