"""What runs inside a job's process; the only package that imports torch, transformers, trl and peft.

    entrypoint       of every trainer process: reads `job.json`, calls what it names, says how it ended
    training         SFT and LoRA fine-tuning, and what all trainings share
    preference       DPO, KTO, ORPO, reward models, GRPO and RLOO
    ppo              PPO, in an environment of its own
    external_trainers  trainings by Axolotl, LLaMA-Factory, Unsloth
    federated        a training as a worker of a federation
    data             from the `data` block of a spec to tokens; training and preview share it
    data_pipeline    a dataset out of others
    engine           answers prompts with Transformers or vLLM, kept warm
    inference, chat  items through it; turns through it, until nobody asks
    evaluation       what a model is worth
    embedding, rag   texts as vectors, and searching them
    merging          adapters into their base, or with each other; GGUF
    verification     whether a model is whole
    command, python_function  a command of the user's; a function of a document
    distributed      ranks, torchrun, sharding
    ray_nodes        nodes of a Ray cluster, and a worker on each: a job of Ray's, not of ours
    runpod           what answers on RunPod's machines
    assets           the model, datasets and examples that ship
    common           the job and its outputs, models and files of a hub, the checks of what is brought

Knows the job folder and what `trainer_control` gives; knows no server, worker or queue. Data, a model or a value that
cannot be used ends in an error with one sentence for the user.
"""
