"""What runs inside a job process; the only room with torch, transformers, trl and peft.

    run          the entry of every trainer process: reads `job.json`, calls the program, says how it ended
    opening      what every program begins with: the job, its checked spec, its session
    ranks, torchrun   several processes for one job    faults     what ends a job that no user can mend

Trainings:
    train        SFT and LoRA fine-tuning, and what all trainings share
    align        on preferences and on rewards         ppo        PPO, in an environment of its own
    trainers     by other people's trainers            preview    what a training would see: rows, tokens, lengths
    data         from the `data` block of a spec to tokens; training and preview share it

With a model:
    engine       answers prompts: Transformers or vLLM, kept warm
    infer        items through it                      chat       turns through it, until nobody asks
    evaluate     what a model is worth                 embed, rag texts as vectors, and searching them
    merge        adapters into their base, or with each other
    base_model   where a model lies, its tokenizer     hub        names of the Hugging Face hub
    answer_numbers   numbers in answers, in one spelling

Without one:
    prepare_data a dataset out of others
    command      a command of the user's, attached     python_task   a function of a document
    ray_nodes    nodes of a Ray cluster, and a worker on each; a job of Ray's, not of ours

Small parts of several:
    archives     an archive stands for its folder      assets     the model, dataset and examples that ship
    outputs      files and folders that are delivered  children   a process that ends with its job
    heeding      commands to a job that goes through items
    together     equal prompts of tasks are computed once
    secrets      what a spec names and must not show   sharding   FSDP2, also without an accelerator

Knows the job folder and what `trainer_control` gives; knows no server, worker or queue. Data, a model or a value that
cannot be used ends in an error with one sentence for the user.
"""
