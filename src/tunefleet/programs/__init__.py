"""What runs inside a job process; the only room with torch, transformers, trl and peft.

    run          the entry of every trainer process: reads `job.json`, calls the program, says how it ended
    train        SFT and LoRA fine-tuning
    preview      what a training would see: rendered rows, the tokens that count, lengths
    data         from the `data` block of a spec to tokens; training and preview share it
    base_model   where a model lies, its tokenizer     hub        names of the Hugging Face hub
    faults       what ends a job that no user can mend
    archives     an archive stands for its folder      assets     the model, dataset and examples that ship

Knows the job folder and what `attach` gives; knows no server, worker or queue. Data, a model or a value that cannot be
used ends in an error with one sentence for the user.
"""
