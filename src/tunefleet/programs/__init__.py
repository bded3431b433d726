"""What runs inside a job process; the only room with torch, transformers, trl and peft.

    run       the entry of every trainer process: reads `job.json`, calls the program, says how it ended
    train     SFT and LoRA fine-tuning
    preview   what a training would see: rendered rows, the tokens that count, lengths
    assets    the model and the dataset that ship with the package

Knows the job folder and what `attach` gives; knows no server, worker or queue. Data, a model or a value that cannot be
used ends in an `InputError` with one sentence for the user.
"""
