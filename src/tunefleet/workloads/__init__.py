"""Programs that run in a job's process; the only package that imports torch, transformers, trl and peft.

    entrypoint       of every trainer process: reads `job.json`, calls the program, records the result
    training         SFT and LoRA fine-tuning, and what all training runs share
    preference       DPO, KTO, ORPO, reward models, GRPO and RLOO
    ppo              PPO, in a separate environment
    external_trainers  training with Axolotl, LLaMA-Factory, Unsloth
    federated        training as a participant of a federation
    data             from the `data` block of a spec to tokens; shared by training and preview
    data_pipeline    builds a dataset from others
    engine           answers prompts with Transformers or vLLM, with a warm pool
    inference, chat  batch inference; chat sessions with an idle timeout
    evaluation       metrics of a model
    embedding, rag   text embeddings, and vector search
    merging          adapters into their base model, or with each other; GGUF
    verification     integrity checks of a model
    command, python_function  a user's command; a function from a workflow file
    distributed      ranks, torchrun, sharding
    ray_nodes        workers on the nodes of a Ray cluster, as a Ray job
    runpod           the handler on RunPod's machines
    assets           the bundled model, datasets and examples
    common           jobs and outputs, models and files of a hub, containment checks

Knows the job folder and the API of `trainer_control`; independent of server, worker and queue. Data, a model or a value
that cannot be used ends in an error with one sentence for the user.
"""
